package runs

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Limits are what one owner may have; 0 = no limit of this kind. Each is looked at before an operation is accepted: what is over one is refused with KindBusy, and nothing of it is kept.
type Limits struct {
	Runs             int   // live runs at once
	Samples          int   // sampling requests that are accepted and not finished, direct ones among them
	TrainedPerMinute int64 // tokens of forward_backward and forward passes
	SampledPerMinute int64 // sampled tokens; a request that is not finished counts with the most that it may sample
	CheckpointBytes  int64 // files of checkpoints
	MetricValues     int64 // clients' own numbers that are kept with runs, live or not
}

// LimitTable says which limits owners have.
type LimitTable struct {
	Default Limits            // of who is not named
	Named   map[string]Limits // whole: nothing is taken from Default
}

// of gives an owner's limits.
func (t *LimitTable) of(owner string) Limits {
	if l, named := t.Named[owner]; named {
		return l
	}
	return t.Default
}

// SetLimits replaces the limits. What has been accepted stays.
func (c *Core) SetLimits(t LimitTable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limited = t
}

// pace is a rate of tokens.
type pace string

// The paces.
const (
	paceTrained pace = "trained"
	paceSampled pace = "sampled"
)

// paceOf is whose pace it is.
type paceOf struct {
	owner string
	kind  pace
}

const (
	// paceSlice is how finely the use of tokens is stored, and paceKept for how long: what an operation of fifteen times a minute's tokens leaves to be waited for is remembered over a restart.
	paceSlice = 15 * time.Second
	paceKept  = 15 * time.Minute
	// longestAfter is the longest wait that a refusal names: the Tinker SDK takes no longer one for a wait.
	longestAfter = time.Minute
	// forRoom is the wait that a refusal names where only the client can make room, or nobody knows when there is some.
	forRoom = 10 * time.Second
)

// meter is how much of a minute's tokens an owner has used. It runs dry at the limit's rate, so that over time no more are used than the limit says, and at once not more than those of a minute and one operation beyond.
type meter struct {
	level    float64
	at       time.Time
	reserved int64 // what samples that are not finished may yet take
}

// drain brings the level to a moment.
func (m *meter) drain(now time.Time, perMinute int64) {
	if gone := now.Sub(m.at); gone > 0 {
		m.level = max(0, m.level-gone.Minutes()*float64(perMinute))
		m.at = now
	}
}

// wait tells how long it takes until the level is below the limit; 0 = it is.
func (m *meter) wait(perMinute int64) time.Duration {
	if m.level < float64(perMinute) {
		return 0
	}
	return time.Duration((m.level-float64(perMinute))/float64(perMinute)*float64(time.Minute)) + time.Second
}

// perMinute is the limit of a pace.
func (l Limits) perMinute(kind pace) int64 {
	if kind == paceTrained {
		return l.TrainedPerMinute
	}
	return l.SampledPerMinute
}

// metered gives the meter of an owner who has a limit, up to date; nil where there is none. mu is held.
func (c *Core) metered(owner string, kind pace) *meter {
	l := c.limited.of(owner)
	limit := l.perMinute(kind)
	k := paceOf{owner, kind}
	m := c.meters[k]
	if limit <= 0 {
		return nil
	}
	if m == nil {
		m = &meter{at: c.cfg.now()}
		c.meters[k] = m
	}
	m.drain(c.cfg.now(), limit)
	return m
}

// overLimit is a refusal for which a client waits: it names the owner, what there is, the limit and what to do.
func overLimit(owner string, after time.Duration, format string, args ...any) *Error {
	after = min(max(after, time.Second), longestAfter).Truncate(time.Second)
	return &Error{Kind: KindBusy, Message: fmt.Sprintf("key %s: %s", owner, fmt.Sprintf(format, args...)), After: after}
}

// mayTrain tells whether an owner may train now. mu is held.
func (c *Core) mayTrain(owner string) error {
	m := c.metered(owner, paceTrained)
	if m == nil {
		return nil
	}
	limit := c.limited.of(owner).TrainedPerMinute
	if wait := m.wait(limit); wait > 0 {
		return overLimit(owner, wait, "%.0f tokens were trained within a minute, and %d may be (limits: trained_tokens_per_minute); repeat in %.0f s, or ask the operator for more", math.Ceil(m.level), limit, math.Ceil(wait.Seconds()))
	}
	return nil
}

// maySample tells whether an owner may have another sampling request. mu is held.
func (c *Core) maySample(owner string) error {
	limits := c.limited.of(owner)
	if limits.Samples > 0 {
		if n := c.samplesOf(owner); n >= limits.Samples {
			return overLimit(owner, time.Second, "%d sampling requests are in flight, and no more than %d may be (limits: samples); wait until some are done, or ask the operator for more", n, limits.Samples)
		}
	}
	m := c.metered(owner, paceSampled)
	if m == nil {
		return nil
	}
	if wait := m.wait(limits.SampledPerMinute); wait > 0 {
		return overLimit(owner, wait, "%.0f tokens were sampled within a minute, and %d may be (limits: sampled_tokens_per_minute); repeat in %.0f s, or ask the operator for more",
			math.Ceil(m.level), limits.SampledPerMinute, math.Ceil(wait.Seconds()))
	}
	if m.level+float64(m.reserved) >= float64(limits.SampledPerMinute) {
		return overLimit(owner, time.Second, "%.0f tokens were sampled within a minute, requests in flight may sample %d more, and %d a minute may be sampled (limits: sampled_tokens_per_minute); repeat when some are done, ask for fewer max_tokens, or ask the operator for more",
			math.Ceil(m.level), m.reserved, limits.SampledPerMinute)
	}
	return nil
}

// samplesOf counts an owner's sampling requests that are not finished. mu is held.
func (c *Core) samplesOf(owner string) int {
	n := c.owners[owner].samples
	for _, m := range c.models {
		n += m.generating.owners[owner]
	}
	return n
}

// reserve counts what a sampling request may sample; a negative number gives it back. mu is held.
func (c *Core) reserve(owner string, tokens int64) {
	k := paceOf{owner, paceSampled}
	m := c.meters[k]
	if m == nil {
		m = &meter{at: c.cfg.now()}
		c.meters[k] = m
	}
	m.reserved += tokens
}

// spend counts used tokens; a negative number takes them back. It gives what has them counted after a restart, to become durable with what they were used for: so that is counted once, whatever happens. mu is held.
func (c *Core) spend(owner string, kind pace, tokens int64) []store.Record {
	m := c.metered(owner, kind)
	if m == nil || tokens == 0 {
		return nil
	}
	m.level = max(0, m.level+float64(tokens))
	if tokens < 0 {
		return nil
	}
	slice := c.cfg.now().UTC().Truncate(paceSlice).Unix()
	r := store.Record{Collection: inPaces, Key: strings.Join([]string{itoa(slice), owner, string(kind)}, "\x1f"), Parent: owner, Rank: slice, Count: tokens, Value: []byte(kind)}
	return []store.Record{r}
}

// loadPaces reads what was used within the last minutes.
func (c *Core) loadPaces(ctx context.Context) error {
	now := c.cfg.now()
	return c.cfg.Store.All(ctx, inPaces, func(rec store.Record) error { // in the order of their time
		at := earlier(time.Unix(rec.Rank, 0).Add(paceSlice), now) // rather too late than too early
		if now.Sub(at) > paceKept || time.Unix(rec.Rank, 0).After(now) {
			return nil
		}
		limit := c.limited.of(rec.Parent)
		k := paceOf{rec.Parent, pace(rec.Value)}
		if limit.perMinute(k.kind) <= 0 {
			return nil
		}
		m := c.meters[k]
		if m == nil {
			m = &meter{at: at}
			c.meters[k] = m
		}
		m.drain(at, limit.perMinute(k.kind))
		m.level += float64(rec.Count)
		return nil
	})
}

// thinPaces deletes what no restart would count any more, and forgets meters that have run dry.
func (c *Core) thinPaces(ctx context.Context) error {
	now := c.cfg.now()
	c.mu.Lock()
	for k, m := range c.meters {
		limits := c.limited.of(k.owner)
		if limit := limits.perMinute(k.kind); limit > 0 {
			m.drain(now, limit)
		} else {
			m.level = 0
		}
		if m.level == 0 && m.reserved == 0 {
			delete(c.meters, k)
		}
	}
	c.mu.Unlock()
	return c.eachOld(ctx, inPaces, now.Add(-paceKept).Unix(), c.removeRecords)
}

// mayHaveRun tells whether an owner may have another live run. mu is held.
func (c *Core) mayHaveRun(owner string) error {
	limit := c.limited.of(owner).Runs
	if limit <= 0 {
		return nil
	}
	if n := c.liveRuns(owner); n >= limit {
		return overLimit(owner, forRoom, "%d runs are live, and no more than %d may be at once (limits: runs); end one (its session, or unload_model), and repeat, or ask the operator for more", n, limit)
	}
	return nil
}

// liveRuns counts an owner's. mu is held.
func (c *Core) liveRuns(owner string) int {
	n := 0
	for _, r := range c.runs {
		if r.Owner == owner && r.usable() {
			n++
		}
	}
	return n
}

// mayStore tells whether an owner may have files of further checkpoints, of so many bytes as far as is known. mu is held.
func (c *Core) mayStore(owner string, more int64) error {
	limit := c.limited.of(owner).CheckpointBytes
	if limit <= 0 {
		return nil
	}
	if have := c.lists.bytes[owner] + c.storing[owner]; have+more > limit || have >= limit && more >= 0 {
		return overLimit(owner, forRoom, "its checkpoints take %s with those that are being written, this one takes about %s, and no more than %s may be taken (limits: checkpoint_mib); delete some that are not needed, and repeat, give them a ttl_seconds, or ask the operator for more",
			mebibytes(have), mebibytes(more), mebibytes(limit))
	}
	return nil
}

// mayMeasure tells whether an owner may have so many values of a client's own more, which nobody else changes meanwhile. mu is held.
func (c *Core) mayMeasure(owner string, more int64) error {
	limit := c.limited.of(owner).MetricValues
	if limit <= 0 || more <= 0 {
		return nil
	}
	if have := c.metricValues[owner]; have+more > limit {
		return overLimit(owner, forRoom, "its runs keep %d values of its own metrics, these rows bring %d more, and no more than %d may be kept (limits: metric_values); send fewer names or steps, or ask the operator for more", have, more, limit)
	}
	return nil
}

// mebibytes writes a size.
func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// store counts files that are being written; a negative number takes them back. mu is held.
func (c *Core) store(owner string, bytes int64) {
	if c.storing[owner] += bytes; c.storing[owner] == 0 {
		delete(c.storing, owner)
	}
}

// sizeOfSave estimates what a save takes: as much as the newest checkpoint of its kind of the run, else of another of the owner's runs with adapters of the same form; less what it takes the place of. mu is held.
func (c *Core) sizeOfSave(r *run, save *saveBody) int64 {
	path, err := ParsePath(save.Path)
	if err != nil {
		return 0
	}
	replaced := int64(0)
	if old := c.checkpoints[save.Path]; old != nil && old.Owner == r.Owner {
		replaced = old.Size
	}
	alike := func(cp *checkpoint) bool {
		l, m := cp.LoRA, r.LoRA
		l.Seed, m.Seed = nil, nil
		return cp.Kind == path.Kind && cp.ServedModel == r.ServedModel && l == m
	}
	for _, list := range [][]*checkpoint{c.lists.byRun[r.ID], c.lists.byOwner[r.Owner]} {
		for i := len(list) - 1; i >= 0 && i >= len(list)-1000; i-- {
			if alike(list[i]) {
				return list[i].Size - replaced
			}
		}
	}
	return -replaced
}
