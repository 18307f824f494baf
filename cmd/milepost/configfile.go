package main

import (
	"fmt"

	"github.com/spf13/cobra"

	milepost "github.com/milepost-rl/milepost"
	"github.com/milepost-rl/milepost/configs"
)

// configFlags are the two flags of every command that takes a configuration.
type configFlags struct {
	file string
	set  []string
}

func (f *configFlags) register(c *cobra.Command, file string) {
	c.Flags().StringVarP(&f.file, "config", "c", file, "configuration: a YAML file, or the name of a shipped one")
	c.Flags().StringArrayVar(&f.set, "set", nil, "override one field: section.field=value (repeatable)")
}

func (f *configFlags) load() (configs.Run, error) {
	if f.file == "" {
		return configs.Run{}, &usageError{fmt.Errorf("no configuration; give -c FILE or the name of a shipped one: %v", configs.Names())}
	}
	return configs.Load(f.file, f.set)
}

func newConfigCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Show and check configurations"}
	c.AddCommand(newConfigShowCommand(), newConfigCheckCommand())
	return c
}

func newConfigShowCommand() *cobra.Command {
	var source, list bool
	var set []string
	c := &cobra.Command{
		Use:   "show [NAME|FILE]",
		Short: "Print a configuration with every field resolved",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if list || len(args) == 0 {
				for _, n := range configs.Names() {
					fmt.Fprintln(c.OutOrStdout(), n)
				}
				return nil
			}
			if source {
				b, err := configs.Source(args[0])
				if err != nil {
					return err
				}
				_, err = c.OutOrStdout().Write(b)
				return milepost.Wrap("config show", milepost.KindUnavailable, err)
			}
			cfg, err := configs.Load(args[0], set)
			if err != nil {
				return err
			}
			b, err := cfg.Marshal()
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(b)
			return milepost.Wrap("config show", milepost.KindUnavailable, err)
		},
	}
	c.Flags().BoolVar(&source, "source", false, "print the file as it is, with its comments")
	c.Flags().BoolVar(&list, "list", false, "list the shipped configurations")
	c.Flags().StringArrayVar(&set, "set", nil, "override one field: section.field=value (repeatable)")
	return c
}

func newConfigCheckCommand() *cobra.Command {
	var set []string
	c := &cobra.Command{
		Use:   "check NAME|FILE...",
		Short: "Check configurations; exit code 2 and the place of the first fault if one is wrong",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			for _, name := range args {
				if _, err := configs.Load(name, set); err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%s: ok\n", name)
			}
			return nil
		},
	}
	c.Flags().StringArrayVar(&set, "set", nil, "override one field: section.field=value (repeatable)")
	return c
}
