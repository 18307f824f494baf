// Package expert holds scripted models: they sit where a policy sits, in the same loop with the same tools, and make
// demonstrations and validation runs.
//
//   - New: the imperfect expert, so that a policy that imitates it leaves room for reinforcement learning. On micro
//     tasks (micro.go) it reads the files and works out the right line from the docstring by the grammar, and never
//     looks at the reference patch; micro specifications it carries out function by function (generate.go). On faults in real packages (inject.go) it knows the patch, as demonstrations may: it
//     looks at each changed place and writes the reference's lines or a wrong variation of them.
//   - NewReference and NewIdle (replay.go): the reference patch in one call, and nothing at all.
//
// A new expert is a [script]: straight code that makes calls and reads their observations (script.go turns it into a
// rollout.Model). The text of every turn is the call alone.
package expert
