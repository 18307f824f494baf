package evaluate

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/benchmarks"
	"github.com/milepost-rl/milepost/internal/stats"
)

// Result is what an evaluation found, as in result.json. Rates are over graded attempts alone: what infrastructure lost is
// counted apart.
type Result struct {
	Name     string   `json:"name"`
	Identity Identity `json:"identity"`
	Method   string   `json:"interval_method"`
	Attempts int      `json:"attempts"` // planned, at each task

	Rate   float64              `json:"rate"` // resolved: pass@1, by all attempts
	Low    float64              `json:"low"`
	High   float64              `json:"high"`
	Graded int                  `json:"graded"`
	Infra  int                  `json:"infra"` // attempts without a grade, for infrastructure's sake
	Open   int                  `json:"open"`  // attempts that were not made: the evaluation was cut short
	Tasks  map[string][]float64 `json:"tasks"` // 1 or 0 of each task's graded attempts: resolved or not

	PassAtK  []AtK     `json:"pass_at_k"`
	ScoreAtK []AtK     `json:"score_at_k,omitempty"` // where the set has tasks with a graded score
	PassRate *Interval `json:"pass_rate,omitempty"`  // mean share of tests passed, where tests were read
	Selected *Selected `json:"selected,omitempty"`

	Rows  []TaskRow `json:"by_task"`
	Repos []RepoRow `json:"by_repository"`
	Spent Spent     `json:"spent"`
	Cost  *Cost     `json:"cost,omitempty"`

	Outcomes map[string]int `json:"outcomes"`          // graded attempts by outcome of the grading
	LostBy   map[string]int `json:"lost_by,omitempty"` // attempts without a grade by kind of loss
	Losses   []Loss         `json:"losses,omitempty"`  // their last losses
	Retried  int            `json:"retried,omitempty"` // losses that a later try made good
	Turns    float64        `json:"turns_mean"`
	Tokens   float64        `json:"tokens_sampled_mean"` // over attempts whose tokens are known
	Sessions int            `json:"sessions"`            // processes that took part
	Active   float64        `json:"active_s"`            // their time
}

// Selected is what one attempt a task, chosen by visible tests, achieves.
type Selected struct {
	Rule string `json:"rule"`
	N    int    `json:"n"` // attempts chosen among, at most
	Interval
	PassAt1 Interval `json:"pass_at_1"` // of the same tasks
	PassAtN Interval `json:"pass_at_n"` // some attempt resolves: what a perfect choice would achieve
	Blind   int      `json:"tasks_without_visible_tests"`
}

// TaskRow is one task.
type TaskRow struct {
	ID       string    `json:"id"`
	Repo     string    `json:"repository"`
	Hash     string    `json:"hash"` // of the task's content
	Graded   int       `json:"graded"`
	Lost     int       `json:"lost,omitempty"`
	Resolved int       `json:"resolved"`
	Scores   []float64 `json:"scores"`             // of the graded attempts, in order
	Selected *int      `json:"selected,omitempty"` // attempt chosen by visible tests
	Cost     *float64  `json:"cost,omitempty"`

	rates     []float64 // shares of tests passed, where known
	generated bool
	chosen    bool // the selected attempt is resolved
	blind     bool
	spent     Spent
}

func (t TaskRow) resolvedShare() float64 { return float64(t.Resolved) / float64(t.Graded) }

// RepoRow is one repository.
type RepoRow struct {
	Repo     string   `json:"repository"`
	Tasks    int      `json:"tasks"`
	Graded   int      `json:"graded"`
	Lost     int      `json:"lost,omitempty"`
	Rate     float64  `json:"pass_at_1"`
	AtN      float64  `json:"pass_at_n"` // share of tasks that some attempt resolved
	Turns    float64  `json:"turns_mean"`
	WallMean float64  `json:"wall_s_mean"`
	Cost     *float64 `json:"cost,omitempty"`
}

// Compute is the result of a journal over the tasks it is of. A record of a task or attempt that is not planned is
// KindInvalid.
func Compute(tasks []*milepost.Task, h History, prices Prices) (*Result, error) {
	_, each, err := Fingerprint(tasks)
	if err != nil {
		return nil, err
	}
	r := &Result{Name: "eval", Identity: h.Start.Identity, Method: Method, Attempts: h.Start.Attempts, Tasks: map[string][]float64{},
		Outcomes: map[string]int{}, Losses: h.Losses, Sessions: h.Sessions, Active: h.Active.Seconds()}
	rows := make(map[string]*TaskRow, len(tasks))
	for _, t := range tasks {
		rows[t.ID] = &TaskRow{ID: t.ID, Repo: repoName(t), Hash: each[t.ID], Scores: []float64{}, generated: scored(t)}
	}
	byTask := map[string][]Record{}
	for _, rec := range h.Records {
		if rows[rec.Task] == nil || rec.Attempt >= h.Start.Attempts {
			return nil, milepost.E("evaluate: result", milepost.KindInvalid, "the journal has attempt %s, which is not among %d attempts at the %d tasks", rec.ID, h.Start.Attempts, len(tasks))
		}
		byTask[rec.Task] = append(byTask[rec.Task], rec)
	}
	for _, l := range h.Losses {
		if row := rows[l.ID[:max(strings.LastIndex(l.ID, "/"), 0)]]; row != nil {
			row.Lost++
		}
		if r.LostBy == nil {
			r.LostBy = map[string]int{}
		}
		r.LostBy[l.Kind]++
	}
	r.Infra, r.Retried = len(h.Losses), h.Lost-len(h.Losses)
	for _, t := range tasks {
		r.addTask(rows[t.ID], byTask[t.ID], h.Start.Identity.Select != "", prices)
	}
	r.Open = len(tasks)*r.Attempts - r.Graded - r.Infra
	return r, r.finish(prices)
}

// addTask folds the records of one task.
func (r *Result) addTask(row *TaskRow, list []Record, selecting bool, prices Prices) {
	slices.SortFunc(list, func(a, b Record) int { return cmp.Compare(a.Attempt, b.Attempt) })
	var candidates []Candidate
	for _, rec := range list {
		resolved := 0.0
		if rec.Resolved {
			resolved = 1
			row.Resolved++
		}
		r.Tasks[row.ID] = append(r.Tasks[row.ID], resolved)
		r.Outcomes[rec.Outcome]++
		row.Graded++
		row.Scores = append(row.Scores, rec.Score)
		if rec.PassRate != nil {
			row.rates = append(row.rates, *rec.PassRate)
		}
		row.spent.add(rec)
		r.Spent.add(rec)
		candidates = append(candidates, Candidate{rec.Attempt, rec.PatchBytes, rec.Visible})
		row.blind = rec.Visible == nil || rec.Visible.Total == 0
	}
	r.Graded += row.Graded
	if selecting && len(list) > 0 {
		chosen := Select(candidates)
		row.Selected = &chosen
		row.chosen = list[slices.IndexFunc(list, func(rec Record) bool { return rec.Attempt == chosen })].Resolved
	}
	if c := row.spent.cost(prices, 0); c != nil {
		row.Cost = &c.Total
	}
	r.Rows = append(r.Rows, *row)
}

// finish computes the figures over tasks.
func (r *Result) finish(prices Prices) (err error) {
	slices.SortFunc(r.Rows, func(a, b TaskRow) int { return cmp.Compare(a.ID, b.ID) })
	if r.PassAtK, err = atEach(r.Rows, func(t TaskRow, k int) (float64, error) { return PassAtK(t.Graded, t.Resolved, k) }); err != nil {
		return err
	}
	generation := slices.DeleteFunc(slices.Clone(r.Rows), func(t TaskRow) bool { return !t.generated })
	if len(generation) > 0 {
		if r.ScoreAtK, err = atEach(generation, func(t TaskRow, k int) (float64, error) { return ScoreAtK(t.Scores, k) }); err != nil {
			return err
		}
	}
	if len(r.PassAtK) > 0 {
		r.Rate, r.Low, r.High = r.PassAtK[0].Value, r.PassAtK[0].Low, r.PassAtK[0].High
	}
	var rates []float64
	resolved := 0
	for _, t := range r.Rows {
		resolved += t.Resolved
		if len(t.rates) > 0 {
			rates = append(rates, stats.Mean(t.rates))
		}
	}
	if len(rates) > 0 {
		i := over(rates)
		r.PassRate = &i
	}
	r.Selected = selectedOf(r.Rows)
	r.Repos = reposOf(r.Rows, prices)
	r.Cost = r.Spent.cost(prices, resolved)
	if n := float64(r.Spent.Attempts); n > 0 {
		r.Turns = float64(r.Spent.Turns) / n
	}
	if n := float64(r.Spent.Told); n > 0 {
		r.Tokens = float64(r.Spent.Completion) / n
	}
	return nil
}

// selectedOf is nil where nothing was selected.
func selectedOf(rows []TaskRow) *Selected {
	var chosen, first, some []float64
	s := &Selected{Rule: SelectRule}
	for _, t := range rows {
		if t.Selected == nil {
			continue
		}
		s.N = max(s.N, t.Graded)
		chosen, first, some = append(chosen, indicator(t.chosen)), append(first, t.resolvedShare()), append(some, indicator(t.Resolved > 0))
		if t.blind {
			s.Blind++
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	s.Interval, s.PassAt1, s.PassAtN = over(chosen), over(first), over(some)
	return s
}

// reposOf sums up repositories, by name.
func reposOf(rows []TaskRow, prices Prices) []RepoRow {
	by := map[string][]TaskRow{}
	for _, t := range rows {
		by[t.Repo] = append(by[t.Repo], t)
	}
	out := make([]RepoRow, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		row := RepoRow{Repo: name, Tasks: len(by[name])}
		var shares, some []float64
		var spent Spent
		for _, t := range by[name] {
			row.Graded, row.Lost = row.Graded+t.Graded, row.Lost+t.Lost
			if t.Graded > 0 {
				shares, some = append(shares, t.resolvedShare()), append(some, indicator(t.Resolved > 0))
			}
			spent.join(t.spent)
		}
		row.Rate, row.AtN = stats.Mean(shares), stats.Mean(some)
		if n := float64(spent.Attempts); n > 0 {
			row.Turns, row.WallMean = float64(spent.Turns)/n, spent.Wall/n
		}
		if c := spent.cost(prices, 0); c != nil {
			row.Cost = &c.Total
		}
		out = append(out, row)
	}
	return out
}

// repoName is a repository's name for tables; made tasks stand under their source, without its numbers' places.
func repoName(t *milepost.Task) string {
	if t.Origin != nil {
		return benchmarks.RepoOf(t)
	}
	if name, _, _ := strings.Cut(t.Source, " "); name != "" {
		return name
	}
	return "(made)"
}

// scored reports whether a task's grade is more than resolved or not: generation of a repository, or a rule with a share.
func scored(t *milepost.Task) bool {
	return t.Kind == milepost.RepoGeneration || t.Grading != nil && (t.Grading.Rule == milepost.GradeRate || t.Grading.Rule == milepost.GradeRewardFile)
}

func indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
