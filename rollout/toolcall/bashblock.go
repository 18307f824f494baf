package toolcall

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/milepost-rl/milepost"
)

// bashBlock is mini-swe-agent's plain text: a turn holds one fenced block with one bash command.
//
//	I look at the file first.
//
//	```mswea_bash_command
//	cat a.py
//	```
//
// The block is a call of the tool bash with the command as its one argument, without white space around it.
type bashBlock struct{}

// BashTool is the tool that blocks of the format bash_block call.
const BashTool = "bash"

const (
	blockFence = "```"
	blockOpen  = blockFence + "mswea_bash_command"
)

// blockPattern is mini-swe-agent's action_regex.
var blockPattern = regexp.MustCompile("(?s)" + blockOpen + `\s*\n(.*?)\n` + blockFence)

func (bashBlock) Name() string { return BashBlock }

func (bashBlock) Shape() string { return blockOpen + "\nCOMMAND\n" + blockFence }

func (bashBlock) Parse(text string) ([]Call, error) {
	const op = "toolcall: parse bash_block"
	rest, err := unthought(text)
	if err != nil {
		return nil, milepost.E(op, milepost.KindInvalid, "%w", err)
	}
	var calls []Call
	for _, m := range blockPattern.FindAllStringSubmatch(rest, -1) {
		args, err := encode(map[string]string{"command": strings.TrimSpace(m[1])})
		if err != nil {
			return nil, milepost.E(op, milepost.KindInvalid, "%w", err)
		}
		calls = append(calls, Call{Name: BashTool, Arguments: args})
	}
	if len(calls) == 0 {
		return nil, milepost.E(op, milepost.KindInvalid, "expected exactly 1 action, found 0")
	}
	return calls, nil
}

func (b bashBlock) Render(c Call) (string, error) {
	const op = "toolcall: render bash_block"
	var args map[string]string
	if err := json.Unmarshal(c.Arguments, &args); err != nil || c.Name != BashTool || len(args) != 1 {
		return "", milepost.E(op, milepost.KindInvalid, "a call to %q with arguments %s is no bash command; allowed: %s with command alone", c.Name, excerpt(string(c.Arguments)), BashTool)
	}
	return checkBack(b, op, blockOpen+"\n"+args["command"]+"\n"+blockFence, c)
}
