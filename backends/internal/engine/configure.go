package engine

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
)

// changeable are the keys of the configuration that can be changed while the backend runs: how training is cut and how much memory it may take, which no result depends on.
var changeable = []string{"adapter_memory_mib", "batch_tokens", "cycle_tokens", "memory_mib", "recompute", "training_memory_mib"}

// Configure changes settings between two device steps: the next training pass, and the next choice of what stays in memory, go by them.
func (e *Engine) Configure(ctx context.Context, req plugins.ConfigureRequest) (plugins.ConfigureResult, error) {
	var result plugins.ConfigureResult
	if _, err := e.ifLoaded(); err != nil {
		return result, err
	}
	c, err := ParseConfig(e.options.Plugin, req.Config)
	if err != nil {
		return result, err
	}
	err = e.onDevice(func() (err error) {
		result.Changed, err = e.loaded.configure(ctx, c, req.Config, e.options.Plugin)
		if err == nil && len(result.Changed) > 0 {
			for _, s := range e.loaded.shares() {
				e.log().Info("memory plan", "share", s.Name, "size", mebibytes(s.Bytes), "detail", s.Detail)
			}
			e.warn(e.loaded)
			e.warnOfAdapters()
		}
		return err
	})
	return result, err
}

// warnOfAdapters says that there are adapters for which the memory of adapters is too small. It runs on the device goroutine.
func (e *Engine) warnOfAdapters() {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.loaded
	adapters, most := 0, int64(0)
	for _, r := range e.order {
		if r.layout == nil { // it is being made, and told then
			continue
		}
		if need := l.adapters.aloneBytes(r.layout, r.frozen); need > l.adapters.limit {
			adapters, most = adapters+1, max(most, need)
		}
	}
	if adapters > 0 {
		e.log().Warn("there are adapters that do not fit into the memory of adapters any more, and what needs them is refused: a larger share (backend.adapter_memory_mib) or more memory (backend.memory_mib) is needed",
			"adapters", adapters, "needed", mebibytes(most), "limit", mebibytes(l.adapters.limit))
	}
}

// configure makes c, which section was read to, the configuration, on the device goroutine. It gives the keys that have changed.
func (l *loaded) configure(ctx context.Context, c Config, section json.RawMessage, plugin string) ([]string, error) {
	changed, err := changedKeys(plugin, l.section, section)
	if err != nil {
		return nil, err
	}
	for _, k := range changed {
		if !slices.Contains(changeable, k) {
			return nil, plugins.Invalidf("backend."+k, "cannot be changed while the backend runs; these can: %v", changeable)
		}
	}
	if len(changed) == 0 {
		return nil, nil
	}
	limits := l.plan.limits()
	switch {
	case c.Memory > 0:
		limits = memoryLimit(c, l.homes.devices)
	case l.config.Memory > 0:
		return nil, plugins.Invalidf("backend.memory_mib", "can be changed, but not be left to the backend, while it runs")
	}
	before, plan := l.config, l.plan
	l.config.change(&c)
	if l.plan, err = l.planMemory(ctx, limits, &plan); err != nil {
		l.config.change(&before)
		l.plan = plan
		return nil, err
	}
	l.section = slices.Clone(section)
	l.memory.limit.Store(l.plan.limit)
	if len(l.memories) > 1 {
		for i, b := range l.memories {
			b.limit.Store(l.plan.devices[i].limit)
		}
	}
	l.adapters.limit = l.plan.adapters
	if l.trainingBytes() > l.plan.training {
		l.shrink() // passes that are under way do so at their end
	}
	for home := 0; home < len(l.memories); {
		if l.memories[home].free() >= 0 {
			home++
			continue
		}
		if l.givePages(false) {
			continue
		}
		moved, err := l.adapters.moveOut(home)
		if moved || l.givePages(true) {
			continue
		}
		if err != nil {
			return changed, internal("move adapters out of memory", err)
		}
		home++ // what is needed now goes when it is not
	}
	if err := l.adapters.trim(); err != nil {
		return changed, internal("move adapters out of memory", err)
	}
	return changed, nil
}

// change takes over the values of the changeable keys. The other fields are read on other goroutines.
func (c *Config) change(to *Config) {
	c.AdapterMemory, c.BatchTokens, c.CycleTokens, c.Memory, c.Recompute, c.TrainingMemory = to.AdapterMemory, to.BatchTokens, to.CycleTokens, to.Memory, to.Recompute, to.TrainingMemory
}

// changedKeys gives the keys whose values mean something else in two sections, in alphabetical order.
func changedKeys(plugin string, before, after json.RawMessage) ([]string, error) {
	var sections [2]map[string]json.RawMessage
	for i, text := range []json.RawMessage{before, after} {
		if len(text) == 0 {
			continue
		}
		if err := json.Unmarshal(text, &sections[i]); err != nil {
			return nil, plugins.Invalidf("backend", "is not a JSON object: %v", err)
		}
	}
	var changed []string
	all := settings(plugin)
	for _, k := range sortedKeys(all) {
		var configs [2]Config
		for i, section := range sections {
			configs[i] = DefaultConfig()
			if value, ok := section[k]; ok {
				if err := all[k](&configs[i], value); err != nil {
					return nil, plugins.Invalidf("backend."+k, "%v", err)
				}
			}
		}
		if !reflect.DeepEqual(configs[0], configs[1]) {
			changed = append(changed, k)
		}
	}
	return changed, nil
}
