// Package trajectories reads what other agent systems recorded, and makes demonstrations for rejection fine-tuning of it.
//
// The way of a record: files.go finds files and gives their records, one JSON object each; a [Format] recognises its
// records by their fields and turns each into the messages of a chat (sweagent.go, mini.go, openhands.go, chat.go);
// build.go holds them to what a conversation is and makes a [Trajectory] of turns, one call each; textcalls.go finds the
// calls that were written as text; judge.go says which turns are not to be trained; demo.go writes the conversation in the
// policy's own call format; import.go filters, drops what is there twice, and writes.
//
// Every fault is an error that names file, row and field. A new system is a file with a Format and a line in [Formats].
package trajectories
