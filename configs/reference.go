package configs

// referenceHead opens reference.yaml.
const referenceHead = `# Every field of a configuration, at its default and documented. Written by ` + "`make generate`" + ` from the comments in the
# source; do not edit. A file of one's own sets only what differs. Durations are like 90s, 2m or 1h30m; sizes are bytes.
# Fields that are "filled in by a run" or by a pipeline (quickstart) may be left as they are.

`

// Documenter writes a configuration as YAML with every field's comment; confdoc.Source is one.
type Documenter interface {
	Write(value any) ([]byte, error)
}

// Reference is the text of reference.yaml: the defaults, documented by d.
func Reference(d Documenter) ([]byte, error) {
	b, err := d.Write(Default())
	return append([]byte(referenceHead), b...), err
}
