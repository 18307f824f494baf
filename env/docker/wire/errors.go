package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/milepost-rl/milepost/env/driver"
)

// Code names an error across the wire.
type Code string

// CodeOther is any error that has no code of its own: the infrastructure's.
const CodeOther Code = "other"

// codes are the errors that keep their identity. The first that matches wins.
var codes = []struct {
	code Code
	err  error
}{
	{"escapes", driver.ErrEscapes}, {"not_regular", driver.ErrNotRegular}, {"too_large", driver.ErrTooLarge}, {"full", driver.ErrFull},
	{"invalid", driver.ErrInvalid}, {"full", syscall.ENOSPC}, {"full", syscall.EDQUOT}, {"not_dir", syscall.ENOTDIR}, {"is_dir", syscall.EISDIR},
	{"loop", syscall.ELOOP}, {"name", syscall.ENAMETOOLONG}, {"not_empty", syscall.ENOTEMPTY}, {"missing", fs.ErrNotExist},
	{"exists", fs.ErrExist}, {"permission", fs.ErrPermission},
}

// Failed makes the answer that carries err.
func Failed(err error) Answer {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return Answer{Code: c.code, Text: err.Error()}
		}
	}
	return Answer{Code: CodeOther, Text: err.Error()}
}

// remoteError reads as it did where it arose.
type remoteError struct {
	text string
	is   error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.is }

// Err returns the error that an answer carries, nil where it carries none.
func (a *Answer) Err() error {
	if a.Code == "" {
		return nil
	}
	for _, c := range codes {
		if c.code == a.Code {
			return &remoteError{a.Text, c.err}
		}
	}
	return fmt.Errorf("inside the container: %s", a.Text)
}
