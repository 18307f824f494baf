package toolcall_test

import (
	"encoding/json"
	"fmt"

	"github.com/milepost-rl/milepost/rollout/toolcall"
)

func ExampleNew() {
	specs := []toolcall.Spec{{Name: "read_file", Parameters: json.RawMessage(`{"properties": {"path": {"type": "string"}, "start": {"type": "integer"}}}`)}}
	for _, name := range []string{toolcall.Hermes, toolcall.Qwen3Coder} {
		f, err := toolcall.New(name, specs)
		if err != nil {
			panic(err)
		}
		text, err := f.Render(toolcall.Call{Name: "read_file", Arguments: json.RawMessage(`{"path": "a.py", "start": 3}`)})
		if err != nil {
			panic(err)
		}
		calls, err := f.Parse("Let me look.\n" + text)
		if err != nil {
			panic(err)
		}
		fmt.Println(text)
		fmt.Println(calls[0].Name, string(calls[0].Arguments))
	}
	// Output:
	// <tool_call>
	// {"name": "read_file", "arguments": {"path": "a.py", "start": 3}}
	// </tool_call>
	// read_file {"path": "a.py", "start": 3}
	// <tool_call>
	// <function=read_file>
	// <parameter=path>
	// a.py
	// </parameter>
	// <parameter=start>
	// 3
	// </parameter>
	// </function>
	// </tool_call>
	// read_file {"path": "a.py", "start": 3}
}
