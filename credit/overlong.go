package credit

// Overlong holds the length terms that are added to the reward before the estimator; each is off while its first field
// is 0. Overlong episodes are not masked: masking removes the negative signal and loops grow (credit.md).
type Overlong struct {
	MaxTokens   int     `yaml:"max_tokens" json:"max_tokens"`     // DAPO: L_max, in sampled tokens
	Buffer      int     `yaml:"buffer" json:"buffer"`             // DAPO: L_buf, the term starts at L_max - L_buf
	Penalty     float64 `yaml:"penalty" json:"penalty"`           // DAPO: p, the term at L_max
	MaxTurns    int     `yaml:"max_turns" json:"max_turns"`       // Nebius: T_max, in steps
	TurnsBefore int     `yaml:"turns_before" json:"turns_before"` // Nebius: L_thr, turns that cost nothing
}

// Validate returns an error of kind invalid that names the field and what is allowed.
func (o Overlong) Validate() error {
	if o.MaxTokens < 0 {
		return fieldError("overlong.max_tokens", o.MaxTokens, "0 (off) or a positive whole number")
	}
	if o.MaxTokens > 0 && (o.Buffer < 1 || o.Buffer > o.MaxTokens) {
		return fieldError("overlong.buffer", o.Buffer, "a whole number from 1 to max_tokens")
	}
	if err := (field{"overlong.penalty", o.Penalty, nonNegative}).check(); err != nil {
		return err
	}
	if o.MaxTurns < 0 {
		return fieldError("overlong.max_turns", o.MaxTurns, "0 (off) or a positive whole number")
	}
	if o.MaxTurns > 0 && (o.TurnsBefore < 0 || o.TurnsBefore >= o.MaxTurns) {
		return fieldError("overlong.turns_before", o.TurnsBefore, "a whole number from 0 to max_turns - 1")
	}
	return nil
}

// Term is the sum of both terms for an episode of so many sampled tokens and turns; never above 0. o is valid.
func (o Overlong) Term(tokens, turns int) float64 {
	a, b := o.Terms(tokens, turns)
	return a + b
}

// Terms returns the token term and the turn term by themselves; a term that is off is 0.
func (o Overlong) Terms(tokens, turns int) (tokenTerm, turnTerm float64) {
	if o.MaxTokens > 0 {
		tokenTerm = OverlongSoft(tokens, o.MaxTokens, o.Buffer, o.Penalty)
	}
	if o.MaxTurns > 0 {
		turnTerm = OverlongTurns(turns, o.TurnsBefore, o.MaxTurns)
	}
	return tokenTerm, turnTerm
}

// OverlongSoft is DAPO's soft term min(-(length-(max-buffer))/buffer*penalty, 0), arXiv 2503.14476, in the form of
// verl: it goes on falling beyond max, where the paper stops at -penalty. buffer is above 0.
func OverlongSoft(length, max, buffer int, penalty float64) float64 {
	return min(-float64(length-(max-buffer))/float64(buffer)*penalty, 0)
}

// OverlongTurns is the turn term of Nebius, arXiv 2508.03501: (before-turns)/(max-before) beyond before turns, else 0.
// max is above before.
func OverlongTurns(turns, before, max int) float64 {
	return min(float64(before-turns)/float64(max-before), 0)
}
