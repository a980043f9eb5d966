package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/gateway/internal/hyperparams"
)

// maxModelConfig bounds a config.json that is read here.
const maxModelConfig = 4 << 20

func hyperparamsCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "hyperparams --model M", Short: "Tell a rank and a learning rate to begin with, by the published rule for LoRA", Args: cobra.NoArgs,
		Long: `Tell a rank and a learning rate to begin with. For the models that tinker-cookbook's hyperparam_utils knows the numbers are the cookbook's; for others they follow from config.json by the same formulas.

The learning rate does not depend on the rank. The rank is large enough when an adapter has at least as many parameters as there are tokens that are trained on (those with a weight); for reinforcement
learning the default of 32 is enough.`,
	}
	var model, file string
	var tokens int64
	var asJSON bool
	flags := c.Flags()
	flags.StringVar(&model, "model", "", "a name that the cookbook knows, a model directory, a name in the Hugging Face cache, or with --config a model of the configuration")
	flags.StringVar(&file, "config", "", "a configuration that has the model, by its name")
	flags.Int64Var(&tokens, "dataset-tokens", 0, "how many tokens are trained on, in supervised learning")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	if err := c.MarkFlagRequired("model"); err != nil {
		panic(err) // a programming error
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		if c.Flags().Changed("dataset-tokens") && tokens < 1 {
			return fmt.Errorf("--dataset-tokens is %d; want at least 1", tokens)
		}
		a, known := (*hyperparams.Advice)(nil), false
		if file == "" {
			a, known = hyperparams.Known(strings.TrimPrefix(model, "hf://"), tokens)
		}
		if !known {
			m, err := modelToPlan(file, model)
			if err != nil {
				return err
			}
			dir, err := hub.Find(c.Context(), m.Path)
			if err != nil {
				return fmt.Errorf("%w; tinker-cookbook does not know the name either", err)
			}
			if dir == "" {
				return fmt.Errorf("%s is not a name that tinker-cookbook knows, and not in the cache: its config.json is needed, alone in a folder that is named in its place", m.Path)
			}
			config, err := readModelConfig(dir)
			if err != nil {
				return err
			}
			if a, err = hyperparams.Of(m.Name, config, tokens); err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
		}
		if a.Notes == nil {
			a.Notes = []string{}
		}
		w := shown{c.OutOrStdout()}
		if asJSON {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(a)
		}
		_, err := fmt.Fprint(w, describeAdvice(a))
		return err
	}
	return c
}

func readModelConfig(dir string) ([]byte, error) {
	path := filepath.Join(dir, "config.json")
	// Opening a pipe waits for its other end.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxModelConfig+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxModelConfig {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxModelConfig)
	}
	return b, nil
}

func describeAdvice(a *hyperparams.Advice) string {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "%-14s %s\n", name, text) }
	line("model", fmt.Sprintf("%s, hidden size %d", a.Model, a.HiddenSize))
	line("learning rate", fmt.Sprintf("%.3g, at any rank", a.LearningRate))
	rank := fmt.Sprint(a.Rank)
	if a.Parameters != nil {
		rank += fmt.Sprintf(", %.1f million parameters", float64(*a.Parameters)/1e6)
	}
	if a.Enough != nil {
		rank += fmt.Sprintf(" for %.1f million tokens", float64(a.DatasetTokens)/1e6)
	} else if a.Parameters != nil {
		rank += ": enough for as many tokens that are trained on (--dataset-tokens), and for reinforcement learning"
	}
	line("rank", rank)
	for _, note := range a.Notes {
		line("note", note)
	}
	line("source", a.Source)
	return b.String()
}
