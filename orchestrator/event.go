package orchestrator

import (
	"fmt"

	milepost "github.com/milepost-rl/milepost"
)

// EventType names what happened.
type EventType string

// The events. Each is the completion of the command of the same stem, or comes from outside.
const (
	EventStarted      EventType = "started"       // the run (or a resumed epoch of it) begins
	EventEpisodeEnded EventType = "episode_ended" // an episode is on disk
	EventEvaluated    EventType = "evaluated"     // an evaluation's verdicts are on disk
	EventGroupJudged  EventType = "group_judged"  // a group has its probes and credit and is on disk
	EventFinalised    EventType = "finalised"     // a batch has its probes and credit and is on disk
	EventTrained      EventType = "trained"       // the update step is done
	EventPushed       EventType = "pushed"        // the servers have the weights and the canary agreed
	EventClosed       EventType = "closed"        // what no update of an asynchronous run took is on disk
)

// Event is one fact that the machine reacts to. It is small: episodes and batches lie in the run folder.
type Event struct {
	Type   EventType `json:"type"`
	Active float64   `json:"active"` // seconds that the run has been up, over all epochs

	Epoch   uint64                 `json:"epoch,omitempty"`   // started
	Episode string                 `json:"episode,omitempty"` // episode_ended
	Status  milepost.EpisodeStatus `json:"status,omitempty"`  // episode_ended
	Oldest  int32                  `json:"oldest,omitempty"`  // episode_ended, training in mode async: least version that sampled a trained token, -1 for none
	Newest  int32                  `json:"newest,omitempty"`  // episode_ended, training in mode async: greatest such version, -1 for none
	Eval    string                 `json:"eval,omitempty"`    // evaluated: name of the evaluation
	Rate    float64                `json:"rate,omitempty"`    // evaluated, group_judged: resolved share, in [0,1]
	Graded  int                    `json:"graded,omitempty"`  // evaluated, group_judged: episodes with a verdict

	Group     string `json:"group,omitempty"`     // group_judged
	Kept      bool   `json:"kept,omitempty"`      // group_judged: it is worth an update by the criterion
	Cancelled bool   `json:"cancelled,omitempty"` // group_judged: judging was given up, the group is not needed any more

	Update int        `json:"update,omitempty"` // finalised, trained: index from 1
	Rows   int        `json:"rows,omitempty"`   // finalised: training sequences; 0 = the update is skipped
	Tokens int64      `json:"tokens,omitempty"` // finalised, closed: tokens sampled for the batch, dropped and cancelled groups included
	Batch  string     `json:"batch,omitempty"`  // finalised: path within the run folder
	SHA256 string     `json:"sha256,omitempty"` // finalised: of the batch file
	Rates  []TaskRate `json:"rates,omitempty"`  // finalised, without dynamic sampling: how each group ended, in their order

	Checkpoint string `json:"checkpoint,omitempty"` // trained: path within the run folder, "" when none was due
	Version    int32  `json:"version,omitempty"`    // pushed
}

// Purpose says what an episode is for.
type Purpose string

// Purposes of episodes; evaluation purposes carry the evaluation's name after the slash.
const PurposeTrain Purpose = "train"

// EpisodeSpec is everything needed to run one episode.
type EpisodeSpec struct {
	ID      string  `json:"id"`
	Group   string  `json:"group"`
	Task    string  `json:"task"`
	Attempt int     `json:"attempt"`
	Retry   int     `json:"retry"`
	Seed    int64   `json:"seed"`
	Purpose Purpose `json:"purpose"` // train, or the name of the evaluation
	Update  int     `json:"update"`  // for train: index of the update, from 1; 0 in mode async, where it is not known yet
}

// CommandType names what the runner is asked to do.
type CommandType string

// The commands. The runner answers each with exactly one event, except stop and cancel.
const (
	CommandEpisode  CommandType = "episode"
	CommandJudge    CommandType = "judge"    // barrier and credit of one ended group, for the criterion of dynamic sampling
	CommandCancel   CommandType = "cancel"   // end outstanding commands early; each still answers with its own event
	CommandEvaluate CommandType = "evaluate" // grade and store the ended episodes of an evaluation
	CommandFinalise CommandType = "finalise" // barrier, credit, batch
	CommandTrain    CommandType = "train"
	CommandPush     CommandType = "push"
	CommandClose    CommandType = "close" // store the episodes that no update of an asynchronous run took
	CommandStop     CommandType = "stop"
)

// Command is one thing for the runner to do.
type Command struct {
	Type     CommandType
	Episode  EpisodeSpec   // episode
	Eval     string        // evaluate
	Group    string        // judge
	Episodes []EpisodeSpec // evaluate, judge, finalise, close: the specs whose episodes count (last retry of each), in order
	Sampling *Sampled      // finalise, close: what became of each group; nil where groups are not judged one by one
	Keys     []string      // cancel: of the commands to end
	// Cancelled marks an outstanding episode or judge command that nobody needs any more: a resumed run answers it as
	// cancelled and does not begin it.
	Cancelled bool
	Update    int    // finalise, train; evaluate: the latest update that was begun
	Base      int32  // finalise, in mode async: version of the weights that the update starts from
	Version   int32  // push: version to serve; its weights are those of the update of that number
	Batch     string // train: path of the batch within the run folder
	SHA256    string // train: of the batch file
	Load      bool   // push: the trainer has other weights and must load these first, for the canary
	Reason    string // stop
}

// Key identifies a command among the outstanding ones.
func (c Command) Key() string {
	switch c.Type {
	case CommandEpisode:
		return "episode " + c.Episode.ID
	case CommandEvaluate:
		return "evaluate " + c.Eval
	case CommandClose:
		return string(CommandClose)
	case CommandJudge:
		return judgeKey(c.Group)
	case CommandPush:
		return pushKey(c.Version)
	default:
		return updateKey(c.Type, c.Update)
	}
}

func judgeKey(group string) string { return "judge " + group }

func pushKey(version int32) string { return fmt.Sprintf("push v%d", version) }

func updateKey(t CommandType, update int) string { return fmt.Sprintf("%s u%d", t, update) }
