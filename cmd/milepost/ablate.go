package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
)

func newAblateCommand() *cobra.Command {
	var o ablateOptions
	c := &cobra.Command{
		Use:   "ablate -c FILE",
		Short: "Compare arms that differ in stated settings: which part of credit does the work?",
		Long: "Makes tasks and a cold start once, chooses a learning rate for every arm by the same search, trains every arm with\n" +
			"every seed under one budget, and compares held-out rates by paired bootstrap, corrected for multiple comparisons.\n" +
			"One vLLM server and one trainer serve all runs. Given the same command again, a study that was interrupted goes on;\n" +
			"finished runs are kept. The result is ablation.md, ablation.html and CSV files, written anew after every run.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			a, err := o.open(newProgress(c.OutOrStdout()))
			if err != nil {
				return err
			}
			if o.plan {
				return a.describe(c.OutOrStdout())
			}
			if err := a.tellStrangers(); err != nil {
				return err
			}
			if o.report {
				if _, err := os.Stat(a.dir); err != nil {
					return milepost.E("ablate", milepost.KindNotFound, "there is no study in %s to report on: %w; give its folder by --dir", a.dir, err)
				}
			} else if err := a.carryOut(c.Context()); err != nil {
				return goOnStudy(c.Context(), err)
			}
			return a.finish(c.OutOrStdout())
		},
	}
	c.Flags().StringVarP(&o.file, "config", "c", "", "study: a YAML file, or the name of a shipped one")
	c.Flags().StringVar(&o.dir, "dir", "", "folder of the study (default runs/NAME)")
	c.Flags().StringVar(&o.artifacts, "artifacts", "", "folder of tasks, demonstrations and cold starts, to share them with other studies (default the study's)")
	c.Flags().StringArrayVar(&o.override.Set, "set", nil, "override one field for every arm: section.field=value (repeatable)")
	c.Flags().StringArrayVar(&o.override.Study, "study", nil, "override one field of the study itself: budget.updates=60 (repeatable)")
	c.Flags().BoolVar(&o.report, "report", false, "run nothing; make the result anew from what is there")
	c.Flags().BoolVar(&o.plan, "plan", false, "run nothing; print the runs that the study consists of")
	return c
}

type ablateOptions struct {
	file, dir    string
	artifacts    string // folder of tasks, demonstrations and cold starts; "" = dir
	override     configs.AblationOverride
	report, plan bool
}

// open loads the study and lays its arms out.
func (o *ablateOptions) open(p *progress) (*study, error) {
	if o.file == "" {
		return nil, &usageError{fmt.Errorf("no study; give -c FILE or the name of a shipped one: %v", configs.AblationNames())}
	}
	if o.report && o.plan {
		return nil, &usageError{errors.New("--report and --plan exclude each other")}
	}
	spec, err := configs.LoadAblation(o.file, o.override)
	if err != nil {
		return nil, err
	}
	dir := o.dir
	if dir == "" {
		dir = filepath.Join("runs", spec.Name)
	}
	command := "milepost ablate -c " + quoted(o.file)
	for _, s := range o.override.Study {
		command += " --study " + quoted(s)
	}
	for _, s := range o.override.Set {
		command += " --set " + quoted(s)
	}
	artifacts := o.artifacts
	if artifacts == "" {
		artifacts = dir
	}
	return newStudy(spec, command, absolute(dir), absolute(artifacts), p)
}

// quoted writes an argument as a shell takes it.
func quoted(s string) string {
	if plainArgument.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

var plainArgument = regexp.MustCompile(`^[\w.,:/=+@%-]+$`)

// goOnStudy says behind an error how to go on.
func goOnStudy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(err, errors.New("or give the same command again: finished runs are kept"))
	}
	return err
}
