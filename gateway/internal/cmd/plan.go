package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins"
)

// planTimeout is how long a plugin may take to plan. It opens no device.
const planTimeout = 5 * time.Minute

func planCommand() *cobra.Command { return planCommandOf(pluginDir) }

// planCommandOf is the command with the plugins of a folder.
func planCommandOf(pluginDir func() (string, error)) *cobra.Command {
	c := &cobra.Command{Use: "plan MODEL", Short: "Tell what memory a model takes, and which placements fit, before anything is loaded: from config.json and the headers of its files", Args: cobra.ExactArgs(1)}
	var file, memory string
	var asJSON bool
	var request plugins.PlanRequest
	flags := c.Flags()
	flags.StringVar(&file, "config", "", "a configuration that has MODEL, by its name: its backend section holds where no option says otherwise")
	flags.StringVar(&request.Device, "device", "", "kind of devices: cpu or cuda (default: that of the configuration, else cpu)")
	flags.IntVar(&request.Devices, "devices", 0, "how many (default: as many as the configuration has, else 1)")
	flags.StringVar(&memory, "memory", "", "memory of each GPU, or of the machine for processors, such as 80GiB; nine tenths of it are used (default: of processors, what is free)")
	flags.IntVar(&request.Rank, "rank", 0, "rank of adapters (default 32)")
	flags.IntVar(&request.Context, "context", 0, "tokens of the longest sequence (default: what fits, up to what the model allows)")
	flags.StringVar(&request.DType, "dtype", "", "type of the weights: auto, float32 or bfloat16 (default: that of the configuration, else of the files)")
	flags.BoolVar(&asJSON, "json", false, "print JSON, with all sizes in bytes")
	c.RunE = func(c *cobra.Command, args []string) error {
		for name, n := range map[string]int{"devices": request.Devices, "rank": request.Rank, "context": request.Context} {
			if c.Flags().Changed(name) && n < 1 {
				return fmt.Errorf("--%s is %d; want at least 1", name, n)
			}
		}
		var err error
		if request.Memory, err = parseMemory(memory); err != nil {
			return fmt.Errorf("--memory %w", err)
		}
		m, err := modelToPlan(file, args[0])
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), planTimeout)
		defer cancel()
		programs, err := pluginDir()
		if err != nil {
			return err
		}
		p, err := planModel(ctx, programs, m, request)
		if err != nil {
			return err
		}
		w := shown{c.OutOrStdout()}
		if asJSON {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(p)
		}
		_, err = fmt.Fprint(w, describePlan(&p))
		return err
	}
	return c
}

// modelToPlan is the model of a configuration that a name or a path means, or, without a file, one that is served as `serve --model` does.
func modelToPlan(file, model string) (config.Model, error) {
	if file == "" {
		m := config.DefaultModel()
		m.Name, m.Path = model, model
		return m, nil
	}
	cfg, err := config.Load(file)
	if err != nil {
		return config.Model{}, err
	}
	var names []string
	for _, m := range cfg.Models {
		if m.Name == model || m.Path == model || slices.Contains(m.Aliases, model) {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return config.Model{}, fmt.Errorf("%s has no model %q; it has %s", file, model, strings.Join(names, ", "))
}

// planModel has the model's plugin plan.
func planModel(ctx context.Context, programs string, m config.Model, request plugins.PlanRequest) (plugins.Plan, error) {
	if m.Remote != nil {
		return plugins.Plan{}, fmt.Errorf("%s: %w", m.Name, errElsewhere)
	}
	dir, err := hub.Find(ctx, m.Path)
	if err != nil {
		return plugins.Plan{}, err
	}
	if dir == "" {
		return plugins.Plan{}, fmt.Errorf("%s is not in the cache: its config.json is needed, alone in a folder that is named in its place", m.Path)
	}
	program, err := fleet.Program(programs, m.Plugin)
	if err != nil {
		return plugins.Plan{}, err
	}
	request.ModelDir, request.Config = dir, m.Backend
	p, err := supervisor.PlanMemory(ctx, program, request)
	if errors.Is(err, plugins.ErrUnplanned) {
		return p, fmt.Errorf("the plugin %s cannot tell what memory a model takes before it is loaded", m.Plugin)
	}
	var e *plugins.Error
	if errors.As(err, &e) && slices.Contains([]string{"device", "devices", "memory", "rank", "context"}, e.Field) {
		return p, fmt.Errorf("--%s %s", e.Field, e.Message)
	}
	return p, err
}

// units of memory, by the ending of a number.
var units = []struct {
	name  string
	bytes float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}

// parseMemory reads a size, such as 80GiB; "" is 0.
func parseMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || !(n > 0) || n*u.bytes < 1 || n*u.bytes > 1<<46 {
			break
		}
		return int64(n * u.bytes), nil
	}
	return 0, fmt.Errorf("is %.40q; want a number with a unit, such as 80GiB, 512MiB or 80GB, of at most 64TiB", text)
}
