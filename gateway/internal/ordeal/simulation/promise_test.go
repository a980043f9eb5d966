package simulation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// canonical says all of an outcome that may not change, bit for bit. The numbers of clock cycles are left out: they are of no run alone.
func canonical(out *runs.Outcome) string {
	if out == nil {
		return ""
	}
	if out.Failure != nil {
		return fmt.Sprintf("failed (%s): %s", out.Failure.Category, out.Failure.Message)
	}
	metrics := func(m map[string]float64) map[string]float64 {
		m = maps.Clone(m)
		delete(m, "clock_cycle")
		delete(m, "clock_cycle:unique")
		return m
	}
	switch {
	case out.CreatedRun != nil:
		return "made " + out.CreatedRun.RunID
	case out.UnloadedRun != nil:
		return "unloaded " + out.UnloadedRun.RunID
	case out.ForwardBackward != nil:
		return fmt.Sprint("pass ", out.ForwardBackward.Logprobs, metrics(out.ForwardBackward.Metrics), out.ForwardBackward.K)
	case out.OptimStep != nil:
		return fmt.Sprint("step ", out.OptimStep.Version, out.OptimStep.Step, metrics(out.OptimStep.Metrics))
	case out.Saved != nil:
		return fmt.Sprint("saved ", *out.Saved)
	case out.SavedSampler != nil:
		return "sampler " + out.SavedSampler.SamplerID
	case out.Loaded != nil:
		return fmt.Sprint("loaded ", *out.Loaded)
	case out.Sample != nil:
		return "sampled " + fmt.Sprint(out.Sample.Sequences)
	}
	return "nothing"
}

// recovered checks what clients were told, right after a start. It runs beside the scheduler, since some readings wait for the store's writer.
func (w *world) recovered(of *server) {
	ctx := context.Background()
	type told struct{ owner, id, outcome string }
	var list []told
	for _, c := range w.clients {
		c.mu.Lock()
		session, finished, tasks := c.session, c.finished, []*task{}
		for _, t := range c.runs {
			if t.created != nil {
				list = append(list, told{c.owner, t.created.id, t.created.outcome})
			}
			for _, x := range t.tasks {
				list = append(list, told{c.owner, x.id, x.outcome})
				tasks = append(tasks, x)
			}
		}
		for _, s := range c.samplers {
			for _, x := range s.samples {
				list = append(list, told{c.owner, x.id, x.outcome})
			}
		}
		c.mu.Unlock()
		if session != "" {
			info, err := of.core.Session(ctx, c.owner, session)
			if err != nil || info.Status.Type != runs.StatusActive && !finished {
				of.violation("the session of client %d after a restart: %+v, %v", c.number, info.Status, err)
			}
		}
		for _, x := range tasks {
			of.keptSaved(c, x)
		}
	}
	for _, x := range list {
		of.kept(x.owner, x.id, x.outcome)
	}
	of.filesOfRecords()
}

// violation notes that a promise was broken, unless the server has crashed meanwhile.
func (of *server) violation(format string, args ...any) {
	if !of.isDead() {
		of.w.violation(format, args...)
	}
}

// kept checks that an operation is there that was acknowledged, with the outcome that was told.
func (of *server) kept(owner, id, outcome string) {
	if id == "" {
		return
	}
	out, err := of.core.Wait(context.Background(), owner, id, 0)
	switch {
	case errors.Is(err, runs.ErrPending) && outcome == "":
	case errors.Is(err, runs.ErrPending):
		of.violation("%s was complete before a restart, and is not any more", id)
	case err != nil:
		of.violation("%s after a restart: %v", id, err)
	case outcome != "" && canonical(out) != outcome:
		of.violation("%s had the outcome %s; after a restart: %s", id, outcome, canonical(out))
	}
}

// keptSaved checks that a checkpoint or sampler is there that a client knows of.
func (of *server) keptSaved(c *client, x *task) {
	w, s := of.w, x.save
	w.mu.Lock()
	wanted := s != nil && s.told && !w.deleted[s.path] && s.ttl == 0
	w.mu.Unlock()
	if !wanted {
		return
	}
	var err error
	if s.path != "" {
		_, err = of.core.WeightsInfo(context.Background(), c.owner, "", s.path)
	} else if !c.finished {
		_, err = of.core.Sampler(context.Background(), c.owner, x.result.SavedSampler.SamplerID)
	}
	if err != nil {
		of.violation("what %s saved is gone after a restart: %v", x.id, err)
	}
}

// filesOfRecords checks that every folder that a record names is there, whole.
func (of *server) filesOfRecords() {
	w := of.w
	check := func(collection string, read func(store.Record) (dir string)) {
		err := of.all(collection, func(rec store.Record) error {
			dir := read(rec)
			if dir == "" || w.damage.in(dir) {
				return nil
			}
			if err := whole(filepath.Join(of.dir, dir)); err != nil {
				of.violation("the files of %s %s: %v", collection, rec.Key, err)
			}
			return nil
		})
		if err != nil {
			of.violation("records of %s cannot be read: %v", collection, err)
		}
	}
	check("checkpoints", func(rec store.Record) string { return checkpointOf(rec).Dir })
	check("recovery_points", func(rec store.Record) string { return rec.Key })
	check("samplers", func(rec store.Record) string {
		var smp struct {
			Dir     string `json:"dir"`
			Session string `json:"session_id"`
		}
		mustBe(json.Unmarshal(rec.Value, &smp))
		for _, c := range w.clients {
			if c.session == smp.Session && !c.finished {
				return smp.Dir
			}
		}
		return "" // its session has ended, and its files with it
	})
}

// all reads a collection, which waits until the store can be written to.
func (of *server) all(collection string, yield func(store.Record) error) error {
	for {
		err := of.store.All(context.Background(), collection, yield)
		if !errors.Is(err, store.ErrUnavailable) || of.isDead() {
			return err
		}
		time.Sleep(time.Second)
	}
}

// whole checks a checkpoint's folder against its own manifest.
func whole(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, plugins.ManifestFile))
	if err != nil {
		return err
	}
	var m plugins.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	for name, sum := range m.SHA256 {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if got := sha256.Sum256(content); hex.EncodeToString(got[:]) != sum {
			return fmt.Errorf("%s is not what was saved", name)
		}
	}
	return nil
}

// once checks that nothing was counted twice or not at all: tokens and checkpoints are counted with the results that they belong to.
func (w *world) once(of *server) {
	ctx := context.Background()
	want, got := map[string]int64{}, map[string]int64{}
	made, audited := map[string]int{}, map[string]int{}
	for _, c := range w.clients {
		for _, t := range c.runs {
			for _, x := range t.tasks {
				switch {
				case x.result == nil || x.result.Failure != nil:
				case x.pass != nil:
					for _, d := range x.pass.Data {
						want[c.session+" training"] += int64(len(d.Tokens))
					}
				case x.save != nil && x.save.path != "":
					want[c.session+" checkpoint"]++
					made[x.save.path]++
				}
			}
		}
		for _, s := range c.samplers {
			for _, x := range s.samples {
				if x.result == nil || x.result.Failure != nil {
					continue
				}
				want[c.session+" sampling_prefill"] += int64(len(x.request.Prompt))
				for _, q := range x.result.Sample.Sequences {
					want[c.session+" sampling_sample"] += int64(len(q.Tokens))
				}
			}
		}
	}
	for _, owner := range owners {
		events, _, err := of.core.Usage(ctx, owner, began.Add(-7*24*time.Hour), began.Add(7*24*time.Hour))
		if err != nil {
			w.violation("usage: %v", err)
		}
		for _, e := range events {
			if e.Type != runs.UsageStorageByteSecs {
				got[e.SessionID+" "+string(e.Type)] += e.Count
			}
		}
	}
	if !maps.Equal(want, got) {
		w.violation("what was counted is not what was done: counted %v, done %v", got, want)
	}
	err := of.all("audit", func(rec store.Record) error {
		var e runs.AuditEntry
		mustBe(json.Unmarshal(rec.Value, &e))
		if e.Event == "checkpoint_created" {
			audited[e.Path]++
		}
		return nil
	})
	if err != nil || !maps.Equal(made, audited) {
		w.violation("checkpoints were made as the log of changes does not say: made %v, logged %v, %v", made, audited, err)
	}
}

// skipped tells whether an outcome says that the operation came too late and was not run.
func skipped(outcome string) bool {
	return strings.Contains(outcome, "arrived after later ones had begun")
}
