package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"syscall"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
)

// configurer changes the configuration of a backend, now or, with supervisor.ErrLater, when it is ready; a Fleet is one.
type configurer interface {
	Configure(ctx context.Context, backend string, section json.RawMessage) (changed []string, err error)
}

// limiter changes what keys may have, at once.
type limiter interface{ limit(config.Limits) }

// configurable is a server in which a reload changes something.
type configurable struct {
	configurer
	core *runs.Core
}

func (c configurable) limit(l config.Limits) { c.core.SetLimits(limitTable(l)) }

// limitTable is what package runs has of the limits.
func limitTable(l config.Limits) runs.LimitTable {
	of := func(name string) runs.Limits {
		x := l.Of(name)
		return runs.Limits{Runs: *x.Runs, Samples: *x.Samples, TrainedPerMinute: int64(*x.TrainedTokens), SampledPerMinute: int64(*x.SampledTokens), CheckpointBytes: int64(*x.CheckpointMiB) << 20, MetricValues: int64(*x.MetricValues)}
	}
	t := runs.LimitTable{Default: of(""), Named: map[string]runs.Limits{}}
	for name := range l.Keys {
		t.Named[name] = of(name)
	}
	return t
}

// reloads is the signal by which the configuration file is read again: what can be changed in `backend:` sections while the server runs takes effect.
type reloads struct{ signals chan os.Signal }

// catchReloads has the signal no longer end the process.
func catchReloads() *reloads {
	r := &reloads{signals: make(chan os.Signal, 1)}
	signal.Notify(r.signals, syscall.SIGHUP)
	return r
}

func (r *reloads) stop() { signal.Stop(r.signals) }

// serve reads the file of cfg again at every signal until ctx ends.
func (r *reloads) serve(ctx context.Context, cfg config.Config, backends configurer) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.signals:
		}
		var err error
		if cfg, err = reload(ctx, cfg, backends); err != nil {
			slog.ErrorContext(ctx, "the configuration was not taken over as a whole", "file", cfg.File, "error", err)
		}
	}
}

// sameBackends tells whether a model has the same backends as before, but for their settings.
func sameBackends(before, now []config.Backend) bool {
	return slices.EqualFunc(before, now, func(a, b config.Backend) bool { return a.Plugin == b.Plugin && reflect.DeepEqual(a.Remote, b.Remote) })
}

// reload reads the file of cfg again and gives what it says of what can be changed. Each backend section is taken over or refused as a whole; the error tells what was not. One that a backend has already changes nothing, and one
// that was refused is tried again by the next call: the backend may be another by then.
func reload(ctx context.Context, cfg config.Config, backends configurer) (config.Config, error) {
	if cfg.File == "" {
		return cfg, errors.New("the server was started without a configuration file")
	}
	next, err := config.LoadUnchecked(cfg.File)
	if err == nil {
		next.Listen, next.DataDir = cfg.Listen, cfg.DataDir // the command line may have others
		next.AddAliases(cfg.Added)
		err = next.Validate()
	}
	if err != nil {
		return cfg, err
	}
	if err := absolute(&next); err != nil {
		return cfg, err
	}
	var errs []error
	models := slices.Clone(cfg.Models)
	for i := range models {
		m := &models[i]
		at := slices.IndexFunc(next.Models, func(other config.Model) bool { return other.Name == m.Name })
		if at < 0 || !sameBackends(m.Members(), next.Models[at].Members()) {
			continue
		}
		m.Backend, m.Sections, m.Pool = next.Models[at].Backend, next.Models[at].Sections, next.Models[at].Pool
		for _, b := range m.Members() {
			changed, err := backends.Configure(ctx, b.Name, b.Section)
			switch {
			case errors.Is(err, supervisor.ErrLater):
				slog.InfoContext(ctx, "backend will be configured when it is ready", "model", b.Name)
			case err != nil:
				errs = append(errs, fmt.Errorf("model %s: %w", b.Name, err))
			case len(changed) > 0:
				slog.InfoContext(ctx, "backend configured", "model", b.Name, "changed", changed)
			}
		}
	}
	cfg.Models = models
	if l, ok := backends.(limiter); ok && !reflect.DeepEqual(cfg.Limits, next.Limits) {
		cfg.Limits = next.Limits
		l.limit(cfg.Limits)
		slog.InfoContext(ctx, "limits of keys were changed")
	}
	if !reflect.DeepEqual(next, cfg) {
		errs = append(errs, errors.New("changes outside of limits and of the models' backend sections need a restart"))
	}
	return cfg, errors.Join(errs...)
}
