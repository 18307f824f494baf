package remote

// Stats counts what became of episodes that were handed out in this epoch. Workers, Slots, Busy, Waiting and Held are states,
// not counts.
type Stats struct {
	HandedOut  int `json:"handed_out"`  // to workers, those handed out again included
	Lost       int `json:"lost"`        // hand-outs whose worker fell silent
	HandedBack int `json:"handed_back"` // by workers that stop
	Ended      int `json:"ended"`       // episodes that came back, whatever their status
	Cancelled  int `json:"cancelled"`   // whose caller gave up
	Abandoned  int `json:"abandoned"`   // of them, those whose worker did not answer in time
	Fenced     int `json:"fenced"`      // steps and results of an attempt that was over
	Corrupt    int `json:"corrupt"`     // messages that could not be read

	Workers int `json:"workers"` // heard of within the last 15 s, of this version, not draining
	Slots   int `json:"slots"`   // theirs
	Busy    int `json:"busy"`    // of these
	Waiting int `json:"waiting"` // episodes that nobody has taken
	Held    int `json:"held"`    // episodes at workers
}
