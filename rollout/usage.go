package rollout

// Usage is what an endpoint said that a conversation cost, in tokens, summed over its turns. Prompts count anew each turn,
// as endpoints bill them.
type Usage struct {
	Prompt     int64 `json:"prompt"`
	Completion int64 `json:"completion"`
	Cached     int64 `json:"cached"` // of Prompt: read from the endpoint's prefix cache, where it says so
	Told       bool  `json:"-"`      // every turn's answer stated its usage; without it the sums are too small
}

// Metered is an optional method of a [Conversation]: what its turns so far cost. It is valid after a failed Next too, and
// then holds the turns before it.
type Metered interface{ Usage() Usage }
