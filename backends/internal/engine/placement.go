package engine

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// Names of the plugins that differ in placement.
const (
	pluginSingle         = "single"
	pluginDataParallel   = "dataparallel"
	pluginTensorParallel = "tensorparallel"
)

// maxRanks bounds a configuration: no machine has more devices.
const maxRanks = 64

// placementSettings are the keys that say where the model runs. "single" has one device; the others a list, and they may have other devices for sampling.
func placementSettings(plugin string) map[string]setting {
	libraries := func(c *Config, value json.RawMessage) error {
		if err := json.Unmarshal(value, &c.CUDALibraries); err != nil || slices.ContainsFunc(c.CUDALibraries, func(dir string) bool { return !filepath.IsAbs(dir) }) {
			return fmt.Errorf("is %s; want a list of folders by their absolute paths", value)
		}
		return nil
	}
	if plugin != pluginDataParallel && plugin != pluginTensorParallel {
		return map[string]setting{
			"device": func(c *Config, value json.RawMessage) error {
				var s string
				if err := json.Unmarshal(value, &s); err != nil {
					return fmt.Errorf("is %s; want cpu, cuda:N or auto", value)
				}
				if s != "cpu" && s != "auto" && !isCUDA(s) {
					return fmt.Errorf("is %q; want cpu, cuda:N (N from 0) or auto", s)
				}
				c.Device, c.Training = s, [][]string{{s}}
				return nil
			},
			"cuda_libraries": libraries,
		}
	}
	all := map[string]setting{
		"cuda_libraries": libraries,
		"devices": func(c *Config, value json.RawMessage) (err error) {
			c.Training, err = devices(plugin, value)
			return err
		},
		"sample_devices": func(c *Config, value json.RawMessage) (err error) {
			c.Sampling, err = devices(pluginDataParallel, value)
			return err
		},
		"comm": func(c *Config, value json.RawMessage) error {
			var s string
			err := choose(&s, value, "local", "nccl")
			c.NCCL = s == "nccl"
			return err
		},
		"nccl_peer_to_peer": func(c *Config, value json.RawMessage) error {
			var s string
			if err := choose(&s, value, "auto", "on", "off"); err != nil {
				return err
			}
			if on := s == "on"; s != "auto" {
				c.NCCLPeerToPeer = &on
			}
			return nil
		},
		"sample_plugin": func(c *Config, value json.RawMessage) error {
			return choose(&c.samplePlugin, value, pluginSingle, pluginDataParallel, pluginTensorParallel)
		},
	}
	if plugin == pluginDataParallel {
		all[shardBase] = func(c *Config, value json.RawMessage) error {
			if err := json.Unmarshal(value, &c.ShardBase); err != nil || string(value) == "null" {
				return fmt.Errorf("is %s; want true or false", value)
			}
			return nil
		}
	}
	return all
}

// shardBase is the key of Config.ShardBase.
const shardBase = "shard_base"

// misplaced says where a key belongs that other plugins have and this one has not; "" for others.
func misplaced(key string) string {
	if key == shardBase {
		return fmt.Sprintf("is for the plugin %s, whose copies of the model can share its weights out; %s cuts every layer instead", pluginDataParallel, pluginTensorParallel)
	}
	return ""
}

// settle checks what is only seen when all settings have been read, and arranges the devices that sample.
func (c *Config) settle(plugin string) error {
	if len(c.Training) == 0 {
		return plugins.Invalidf("backend.devices", "is missing: the devices of the plugin %s, such as [cpu, cpu]", plugin)
	}
	if plugin == pluginDataParallel || plugin == pluginTensorParallel {
		c.Device = c.Training[0][0] // the home device
	}
	if len(c.Sampling) > 0 && isCUDA(c.Sampling[0][0]) != isCUDA(c.Training[0][0]) {
		return plugins.Invalidf("backend.sample_devices", "begins with %q and devices with %q: they work on memory that they share, so they are all processors or all GPUs", c.Sampling[0][0], c.Training[0][0])
	}
	if c.ShardBase && len(c.Training) < 2 {
		return plugins.Invalidf("backend."+shardBase, "shares the weights out over the entries of backend.devices; there is only one")
	}
	if err := c.settleSampling(plugin); err != nil {
		return err
	}
	if err := c.checkProducts(); err != nil {
		return err
	}
	return c.checkNCCL()
}

// checkNCCL refuses NCCL where no ranks would exchange through it or it could not be.
func (c *Config) checkNCCL() error {
	if !c.NCCL {
		if c.NCCLPeerToPeer != nil {
			return plugins.Invalidf("backend.nccl_peer_to_peer", "is set without comm: nccl")
		}
		return nil
	}
	cut := false
	for _, g := range slices.Concat(c.Training, c.Sampling) {
		if !isCUDA(g[0]) {
			return plugins.Invalidf("backend.comm", "is nccl, which is for GPUs, and there is the device %q; want local", g[0])
		}
		cut = cut || len(g) > 1
		for i, d := range g {
			if slices.Contains(g[:i], d) {
				return plugins.Invalidf("backend.comm", "is nccl, which takes each GPU once, and %q is in a group twice; want local", d)
			}
		}
	}
	if !cut {
		return plugins.Invalidf("backend.comm", "is nccl, and no model is cut over several devices; copies exchange nothing")
	}
	return nil
}

// settleSampling arranges the devices that sample.
func (c *Config) settleSampling(plugin string) error {
	if len(c.Sampling) == 0 {
		if c.samplePlugin != "" {
			return plugins.Invalidf("backend.sample_plugin", "is %q without sample_devices", c.samplePlugin)
		}
		return nil
	}
	if n := c.ranks(); n > maxRanks {
		return plugins.Invalidf("backend.sample_devices", "makes %d devices with those that train; at most %d can work together", n, maxRanks)
	}
	if c.samplePlugin == "" {
		c.samplePlugin = plugin
	}
	switch n := len(slices.Concat(c.Sampling...)); c.samplePlugin {
	case pluginSingle:
		if n != 1 {
			return plugins.Invalidf("backend.sample_devices", "has %d devices; the sample_plugin %s has one", n, pluginSingle)
		}
	case pluginTensorParallel:
		if len(c.Sampling) != n {
			return plugins.Invalidf("backend.sample_devices", "has groups of devices; they are for the sample_plugin %s", pluginDataParallel)
		}
		c.Sampling = [][]string{slices.Concat(c.Sampling...)}
	}
	return nil
}

// isCUDA tells the names of CUDA devices: cuda:0, cuda:1, …
func isCUDA(name string) bool {
	digits, ok := strings.CutPrefix(name, "cuda:")
	n, err := strconv.Atoi(digits)
	return ok && err == nil && n >= 0 && strconv.Itoa(n) == digits
}

// checkDevice refuses names that no rank's device has.
func checkDevice(name string) error {
	if name != "cpu" && !isCUDA(name) {
		return fmt.Errorf("is %q; want cpu or cuda:N (N from 0)", name)
	}
	return nil
}

// devices reads a list of devices as groups: for data parallelism each device, or each list of devices, has a copy of the model; for tensor parallelism all have one together.
func devices(plugin string, value json.RawMessage) ([][]string, error) {
	var entries []json.RawMessage
	if err := json.Unmarshal(value, &entries); err != nil || len(entries) == 0 {
		return nil, fmt.Errorf("is %s; want a list of devices, such as [cpu, cpu]", value)
	}
	var groups [][]string
	ranks := 0
	for _, entry := range entries {
		var group []string
		var name string
		switch {
		case json.Unmarshal(entry, &name) == nil:
			group = []string{name}
		case plugin == pluginDataParallel && json.Unmarshal(entry, &group) == nil && len(group) > 0:
		case plugin == pluginDataParallel:
			return nil, fmt.Errorf("has the entry %s; want a device or a list of devices", entry)
		default:
			return nil, fmt.Errorf("has the entry %s; want a device (groups of devices are for the plugin %s)", entry, pluginDataParallel)
		}
		for _, d := range group {
			if err := checkDevice(d); err != nil {
				return nil, err
			}
		}
		groups = append(groups, group)
		ranks += len(group)
	}
	for _, d := range slices.Concat(groups...) {
		if isCUDA(d) != isCUDA(groups[0][0]) {
			return nil, fmt.Errorf("has %q and %q: devices work on memory that they share, so they are all processors or all GPUs", groups[0][0], d)
		}
	}
	if ranks > maxRanks {
		return nil, fmt.Errorf("has %d devices; at most %d can work together", ranks, maxRanks)
	}
	for _, g := range groups {
		if len(g) != len(groups[0]) {
			return nil, fmt.Errorf("has groups of %d and %d devices; all must be equally large", len(groups[0]), len(g))
		}
	}
	if plugin == pluginTensorParallel {
		return [][]string{slices.Concat(groups...)}, nil
	}
	return groups, nil
}

// ranks is the number of devices.
func (c *Config) ranks() int {
	n := 0
	for _, g := range slices.Concat(c.Training, c.Sampling) {
		n += len(g)
	}
	return n
}

// opening adds to the error of a device that could not be opened how many the configuration needs: the error says what there is.
func (c *Config) opening(err error) error {
	most := -1
	for _, name := range slices.Concat(slices.Concat(c.Training, c.Sampling)...) {
		if digits, ok := strings.CutPrefix(name, "cuda:"); ok {
			if n, err := strconv.Atoi(digits); err == nil {
				most = max(most, n)
			}
		}
	}
	switch {
	case err == nil || most < 0:
		return err
	case most == 0:
		return fmt.Errorf("%w; this configuration needs 1, cuda:0", err)
	}
	return fmt.Errorf("%w; this configuration needs %d, the last is cuda:%d", err, most+1, most)
}

// devices writes the placement for people: "cpu", "cpu + cpu" for copies, "cpu|cpu" for a model that is cut, and the devices for sampling behind a semicolon.
func (c *Config) devices() string {
	list := func(groups [][]string) string {
		var parts []string
		for _, g := range groups {
			parts = append(parts, strings.Join(g, "|"))
		}
		return strings.Join(parts, " + ")
	}
	s := list(c.Training)
	if len(c.Sampling) > 0 {
		s += "; sampling on " + list(c.Sampling)
	}
	return s
}
