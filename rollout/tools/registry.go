package tools

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/rollout/toolcall"
)

//go:embed schema
var schemas embed.FS

// Config chooses the tools an agent gets and how much they show.
type Config struct {
	// Names is the subset of the scaffold's tools, told to the policy in this order; empty is all of them. It must hold the one
	// that hands in: submit, OpenHands' finish, mini-swe-agent's bash.
	Names []string `yaml:"names"`
	// Descriptions replaces the description of a tool in the prompt; "" leaves it out.
	Descriptions map[string]string `yaml:"descriptions"`
	// LineNumbers makes read_file print "12: " before each line.
	LineNumbers bool `yaml:"line_numbers"`
	// ReadLines is the most lines that one read_file shows.
	ReadLines int `yaml:"read_lines"`
	// SearchHits is the most hits that one search shows.
	SearchHits int `yaml:"search_hits"`
	// ObservationLimit is the most bytes of any observation; the middle of a longer one is cut out, with a mark.
	ObservationLimit int `yaml:"observation_limit"`
	// Shell runs the commands of execute_bash, as SHELL -c COMMAND.
	Shell string `yaml:"shell"`
	// BashTimeout ends one command of execute_bash.
	BashTimeout time.Duration `yaml:"bash_timeout"`
}

// Default gives all tools, with room for a large model.
func Default() Config {
	return Config{ReadLines: 400, SearchHits: 50, ObservationLimit: 16000, Shell: "bash", BashTimeout: 60 * time.Second}
}

// minObservation leaves room for a truncation mark with some text around it.
const minObservation = 200

// Validate reports the first field that is out of range for a kit, by its YAML name.
func (c Config) Validate(kit string) error {
	bad := func(format string, args ...any) error {
		return milepost.E("tools: config", milepost.KindInvalid, format, args...)
	}
	all := Names(kit)
	if all == nil {
		return bad("kit %q is not one of %s", kit, strings.Join(Kits(), ", "))
	}
	for i, n := range c.Names {
		if !slices.Contains(all, n) {
			return bad("names: %q is not one of %s", n, strings.Join(all, ", "))
		}
		if slices.Contains(c.Names[:i], n) {
			return bad("names: %q is there twice", n)
		}
	}
	if ends := kits[kit].ends; len(c.Names) > 0 && !slices.Contains(c.Names, ends) {
		return bad("names: %s is missing; without it no episode ends but by a limit", ends)
	}
	for _, n := range sortedKeys(c.Descriptions) {
		if !slices.Contains(all, n) {
			return bad("descriptions: %q is not one of %s", n, strings.Join(all, ", "))
		}
	}
	switch {
	case c.ReadLines < 1:
		return bad("read_lines: %d is not at least 1", c.ReadLines)
	case c.SearchHits < 1:
		return bad("search_hits: %d is not at least 1", c.SearchHits)
	case c.ObservationLimit < minObservation:
		return bad("observation_limit: %d is not at least %d bytes", c.ObservationLimit, minObservation)
	case c.Shell == "":
		return bad("shell: is empty; it must name a shell in the sandbox, such as bash")
	case c.BashTimeout <= 0:
		return bad("bash_timeout: %v is not positive", c.BashTimeout)
	}
	return nil
}

// Set is the tools of one configuration. It is immutable and safe for concurrent use.
type Set struct {
	cfg     Config
	kit     kit
	names   []string
	specs   []toolcall.Spec
	tools   map[string]Tool
	schemas map[string]*jsonschema.Schema
}

// New validates the configuration and compiles the schemas of a kit's tools. KindInvalid for the configuration.
func New(kit string, cfg Config) (*Set, error) {
	if err := cfg.Validate(kit); err != nil {
		return nil, err
	}
	s := &Set{cfg: cfg, kit: kits[kit], names: cfg.Names, tools: map[string]Tool{}, schemas: map[string]*jsonschema.Schema{}}
	if len(s.names) == 0 {
		s.names = Names(kit)
	}
	for _, name := range s.names {
		e, _ := s.kit.entry(name)
		spec, schema, err := load(name, e.schema)
		if err != nil {
			return nil, milepost.Wrap("tools: new", milepost.KindInternal, fmt.Errorf("schema of %s: %w", name, err))
		}
		if d, ok := cfg.Descriptions[name]; ok {
			spec.Description = d
		}
		s.specs = append(s.specs, spec)
		s.schemas[name] = schema
		s.tools[name] = e.build(&s.cfg)
	}
	return s, nil
}

// load reads the embedded schema of a tool, file below schema/. Its top-level description is the tool's and moves out of the parameters.
func load(name, file string) (toolcall.Spec, *jsonschema.Schema, error) {
	spec := toolcall.Spec{Name: name}
	raw, err := schemas.ReadFile("schema/" + file + ".json")
	if err != nil {
		return spec, nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return spec, nil, err
	}
	object, ok := doc.(map[string]any)
	if !ok {
		return spec, nil, errors.New("not a JSON object")
	}
	spec.Description, _ = object["description"].(string)
	delete(object, "description")
	if spec.Parameters, err = json.Marshal(object); err != nil {
		return spec, nil, err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name+".json", doc); err != nil {
		return spec, nil, err
	}
	schema, err := compiler.Compile(name + ".json")
	return spec, schema, err
}

// Specs describes the tools to a policy. The caller must not change the result.
func (s *Set) Specs() []toolcall.Spec { return s.specs }

// Tool returns the tool of that name, nil where the agent has none such.
func (s *Set) Tool(name string) Tool { return s.tools[name] }

// Editor names the tool that edits; "" where the shell is all there is.
func (s *Set) Editor() string { return s.kit.editor }

// Fault is the observation of a turn whose call was not carried out: why in words for the policy, and the shape of a call
// where the turn was parsed here, "" where the endpoint did.
func (s *Set) Fault(why, shape string) string { return s.Bound(s.kit.fault(why, shape)) }

// Check holds a call against the tools and their schemas. It returns "" or what is wrong, in words for the policy.
func (s *Set) Check(c toolcall.Call) string {
	schema, ok := s.schemas[c.Name]
	if !ok {
		return fmt.Sprintf("unknown tool %q; the tools are %s", c.Name, strings.Join(s.names, ", "))
	}
	inst, err := jsonschema.UnmarshalJSON(bytes.NewReader(c.Arguments))
	if err != nil {
		return fmt.Sprintf("%s: the arguments are no JSON: %v", c.Name, err)
	}
	err = schema.Validate(inst)
	if err == nil {
		return ""
	}
	var v *jsonschema.ValidationError
	if !errors.As(err, &v) {
		return fmt.Sprintf("%s: %v", c.Name, err)
	}
	causes := leaves(v, nil)
	slices.Sort(causes)
	return c.Name + ": " + strings.Join(slices.Compact(causes), "; ")
}

var english = message.NewPrinter(language.English)

// leaves collects the innermost causes of a validation error, each with the argument it is about.
func leaves(v *jsonschema.ValidationError, out []string) []string {
	if len(v.Causes) > 0 {
		for _, c := range v.Causes {
			out = leaves(c, out)
		}
		return out
	}
	text := v.ErrorKind.LocalizedString(english)
	if _, forbidden := v.ErrorKind.(*kind.FalseSchema); forbidden {
		text = "not allowed here"
	}
	if len(v.InstanceLocation) > 0 {
		text = strings.Join(v.InstanceLocation, ".") + ": " + text
	}
	return append(out, text)
}

// Run carries out a call that [Set.Check] passed. The observation is bounded and never empty. Errors are of an
// infrastructure kind or canceled.
func (s *Set) Run(ctx context.Context, session *Session, c toolcall.Call) (Result, error) {
	r, err := s.tools[c.Name].Run(ctx, session, c.Arguments)
	if isMistake(err) {
		r = Result{Text: "error: " + toolcall.Why(err)}
	} else if err != nil {
		return Result{}, err
	}
	r.Text = s.Bound(s.kit.observe(r.Text))
	return r, nil
}

// isMistake reports whether err is of a kind that a workspace gives for what was asked of it, not for its own failure.
func isMistake(err error) bool {
	switch milepost.KindOf(err) {
	case milepost.KindInvalid, milepost.KindNotFound, milepost.KindDenied, milepost.KindLimit:
		return true
	}
	return false
}

// Bound makes text fit for an observation: valid UTF-8, not empty, at most ObservationLimit bytes.
func (s *Set) Bound(text string) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	if text == "" {
		return "(empty)"
	}
	return cut(text, s.cfg.ObservationLimit)
}
