// Package expert holds scripted models: they sit where a policy sits, in the same loop with the same tools, and make
// demonstrations and validation runs.
//
//   - New (micro.go): reads the files of a micro repository, works out the right line from the docstring by the
//     grammar, and is deliberately imperfect, so that a policy that imitates it leaves room for reinforcement learning.
//     It never looks at the reference patch.
//   - NewInject (inject.go): for faults in real packages. It knows the reference patch, as demonstrations may: it looks
//     at the place of each hunk and writes the reference's lines or a wrong variation of them.
//   - NewReference and NewIdle (replay.go): the reference patch in one call, and nothing at all.
//
// A new expert is a [script]: straight code that makes calls and reads their observations (script.go turns it into a
// rollout.Model). The text of every turn is the call alone.
package expert
