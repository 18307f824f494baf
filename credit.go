package milepost

// StepCredit is the credit of one step; the symbols are those of SWE-MILE (arXiv 2609.32631).
type StepCredit struct {
	PhiVer    float64 `json:"phi_ver"` // verification potential after the step
	PhiNav    float64 `json:"phi_nav"` // navigation potential after the step
	R         float64 `json:"r"`       // weighted change of the potentials
	B         float64 `json:"b"`       // discounted backward credit
	F         float64 `json:"f"`       // format term, 0 or -1
	P         float64 `json:"p"`       // process advantage r + b + w_format*f
	AOut      float64 `json:"a_out"`   // outcome advantage
	Advantage float64 `json:"advantage"`
}

// EpisodeCredit is the credit of one episode; Steps is nil where the episode is excluded (infra_error).
type EpisodeCredit struct {
	ID       string       `json:"id"`
	Excluded bool         `json:"excluded"`
	Steps    []StepCredit `json:"steps"`
}
