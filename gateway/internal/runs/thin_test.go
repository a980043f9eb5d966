package runs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

const day = 24 * time.Hour

// records counts all records, by collection.
func (w *world) records() map[string]int {
	w.t.Helper()
	all := map[string]int{}
	for _, collection := range []string{inSessions, inRuns, inOwned, inSamplers, inCheckpoints, inOperations, inResults, inSkips, inTurns, inUsage, inUsageDays, inAudit, inRetired, inLive, inTexts, inProjects, inResponses, inSequences} {
		w.ok(w.store.All(w.t.Context(), collection, func(store.Record) error { all[collection]++; return nil }))
	}
	return all
}

func TestOldRecordsAreThinned(t *testing.T) {
	w, clock := clocked(t, func(w *world) {
		w.config.SessionsKept, w.config.AuditKept, w.config.UsageByHour = 90*day, 60*day, 30*day
	})
	ctx := t.Context()
	began := clock.time()
	w.life()
	session := w.session()
	w.ok(w.AssignProject(ctx, owner, session, "p"))
	run := w.trained(session, 0)
	path := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 5), Name: "kept"})).Saved.Path
	w.ok(w.FinishSession(ctx, owner, session, "success", strings.Repeat("d", 2*maxInline)))
	copied, err := w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: path, ProjectID: "p"})
	w.ok(err)
	w.ok(w.DeleteCheckpoint(ctx, owner, copied.Path, ""))
	total := func() map[UsageType]int64 {
		t.Helper()
		sums := map[UsageType]int64{}
		events, _, err := w.Usage(ctx, owner, began.Truncate(day), began.Truncate(day).Add(2*day))
		w.ok(err)
		for _, e := range events {
			if e.Type != UsageStorageByteSecs {
				sums[e.Type] += e.Count
			}
		}
		return sums
	}
	used := fmt.Sprint(total())
	later := func(d time.Duration) {
		for range 3 { // what becomes of a session goes in steps
			clock.add(d / 3)
			w.quiet()
		}
		w.quiet()
	}
	later(29 * day)
	if _, _, err := w.SearchSessions(ctx, owner, SessionQuery{}); err != nil {
		t.Error(err)
	}
	young := w.records()
	if young[inSessions] != 2 || young[inAudit] < 3 || young[inUsage] == 0 || young[inTexts] != 1 {
		t.Fatalf("too early: %v", young)
	}
	if got := fmt.Sprint(total()); got != used {
		t.Errorf("usage is %s, was %s", got, used)
	}
	later(6 * day)
	if got := fmt.Sprint(total()); got != used {
		t.Errorf("usage by day is %s, was %s", got, used)
	}
	events, sessions, err := w.Usage(ctx, owner, began.Truncate(day), began.Truncate(day).Add(day))
	w.ok(err)
	for _, e := range events {
		if e.SessionID != "" || e.End.Sub(e.Start) != day {
			t.Errorf("an event is not of the day: %+v", e)
		}
	}
	if len(events) == 0 || len(sessions) != 0 {
		t.Errorf("%d events, sessions %v", len(events), sessions)
	}
	later(70 * day)
	old := w.records()
	for collection, want := range map[string]int{inSessions: 1, inRuns: 1, inOwned: 1, inSamplers: 0, inCheckpoints: 1, inOperations: 0, inResults: 0, inAudit: 0, inRetired: 1, inLive: 0, inTexts: 1, inProjects: 1} {
		if old[collection] != want {
			t.Errorf("%d records of %s are left, want %d", old[collection], collection, want)
		}
	}
	// What a checkpoint needs is there, also after a restart; and goes behind it.
	w.restart()
	if info, err := w.Session(ctx, owner, session); err != nil || info.Checkpoints != 1 || info.ProjectID != "p" || len(info.Status.Detail) != 2*maxInline {
		t.Errorf("session %+v, %v", info, err)
	}
	if info, err := w.Run(ctx, owner, run, ScopeOwned); err != nil || info.LastSampler == nil {
		t.Errorf("run %+v, %v", info, err)
	}
	w.ok(w.DeleteCheckpoint(ctx, owner, path, ""))
	later(200 * day)
	for collection, n := range w.records() {
		if n > 0 && collection != inUsageDays && collection != inUsage {
			t.Errorf("%d records of %s are left", n, collection)
		}
	}
	if got := fmt.Sprint(total()); got != used {
		t.Errorf("usage is %s in the end, was %s", got, used)
	}
}

// What is damaged or belongs to nothing does not keep the rest for ever, nor does it matter that a server without keys has an owner without a name.
func TestThinningGoesOnBesideDamage(t *testing.T) {
	w, clock := clocked(t, func(w *world) {
		w.config.SessionsKept, w.config.AuditKept, w.config.UsageByHour = 90*day, 60*day, 30*day
	})
	ctx := t.Context()
	at := clock.time()
	entry := func(session string) store.Record {
		return store.Record{Collection: inRetired, Key: session, Parent: recordsNext, Rank: at.UnixNano()}
	}
	w.ok(w.store.Commit(ctx, store.Batch{
		Put: []store.Record{
			entry("gone"), entry("damaged"), {Collection: inSessions, Key: "damaged", Rank: at.UnixNano(), Value: []byte("!")},
			{Collection: inAudit, Key: "a", Rank: at.UnixNano(), Value: []byte("{}")}, {Collection: inAudit, Key: "b", Parent: owner, Rank: at.UnixNano(), Value: []byte("{}")},
		},
		Add: []store.Record{{Collection: inUsage, Key: "u", Rank: at.Unix(), Count: 3, Value: []byte("{}")}},
	}))
	clock.add(200 * day)
	w.quiet()
	left := w.records()
	for collection, want := range map[string]int{inRetired: 1, inSessions: 1, inAudit: 0, inUsage: 0, inUsageDays: 1} {
		if left[collection] != want {
			t.Errorf("%d records of %s are left, want %d", left[collection], collection, want)
		}
	}
}

// A crash between two steps on the way of an ended session leaves it in the schedule.
func TestEndedSessionsGoAfterACrash(t *testing.T) {
	w, clock := clocked(t, func(w *world) { w.config.SessionsKept = 90 * day })
	w.life()
	clock.add(2 * retireAfter)
	w.quiet()
	for _, wait := range []time.Duration{w.cfg.ResultsKept, w.cfg.SamplesKept, 90 * day} {
		broken := w.failing(inSessions)
		clock.add(wait + time.Hour)
		w.quiet()
		if wait != 90*day && broken.refused.Load() == 0 {
			t.Fatal("nothing was cut off")
		}
		w.restart()
		w.quiet()
	}
	w.quiet()
	if left := w.records(); left[inSessions]+left[inRuns]+left[inSamplers]+left[inRetired]+left[inResults] != 0 {
		t.Errorf("left is %v", left)
	}
}

func TestRecordsAreKeptForEver(t *testing.T) {
	w, clock := clocked(t, nil)
	w.life()
	clock.add(day)
	w.quiet()
	clock.add(day)
	w.quiet()
	before := fmt.Sprint(w.records())
	clock.add(5000 * day)
	w.quiet()
	if got := fmt.Sprint(w.records()); got != before {
		t.Errorf("got %s, want %s", got, before)
	}
}

func TestDownloadsAreCountedByHour(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	path := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 5), Name: "a"})).Saved.Path
	before := w.records()[inAudit]
	for range 5 {
		_, _, err := w.ArchiveToken(ctx, Requester{Owner: owner}, path)
		w.ok(err)
	}
	clock.add(time.Hour)
	_, _, err := w.ArchiveToken(ctx, Requester{Owner: owner}, path)
	w.ok(err)
	if n := w.records()[inAudit] - before; n != 2 {
		t.Errorf("six links in two hours are %d records", n)
	}
	list, err := w.Audit(ctx, owner, "checkpoints", time.Time{})
	w.ok(err)
	var counts []int64
	for _, e := range list {
		if e.Event == "checkpoint_downloaded" {
			counts = append(counts, e.Count)
		}
	}
	if fmt.Sprint(counts) != "[5 0]" {
		t.Errorf("counted are %v", counts)
	}
}

// TestUpgrade opens records as an older version wrote them: everything in one record, and no lists.
func TestUpgrade(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	large := metadata("old", 50<<10)
	var ended [2]string
	for i := range ended {
		ended[i], _, _ = w.life()
	}
	session := w.session()
	w.ok(w.AssignProject(ctx, owner, session, "p"))
	run := w.trained(session, 0)
	path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	clock.add(retireAfter + time.Second)
	w.ok(w.Heartbeat(ctx, owner, session))
	w.quiet()
	w.close()
	s, err := store.Open(ctx, store.Options{Dir: w.dir})
	w.ok(err)
	var b store.Batch
	for _, collection := range []string{inLive, inOwned, inProjects, inUpgrades} {
		w.ok(s.All(ctx, collection, func(rec store.Record) error {
			b.Delete = append(b.Delete, store.RecordKey{Collection: collection, Key: rec.Key})
			return nil
		}))
	}
	w.ok(s.All(ctx, inSessions, func(rec store.Record) error {
		var old sessionRecord
		w.ok(json.Unmarshal(rec.Value, &old))
		old.UserMetadata = large
		rec.Value = mustJSON(old)
		b.Put = append(b.Put, rec)
		return nil
	}))
	w.ok(s.All(ctx, inCheckpoints, func(rec store.Record) error {
		var old checkpointRecord
		w.ok(json.Unmarshal(rec.Value, &old))
		old.Project = ""
		rec.Value = mustJSON(old)
		b.Put = append(b.Put, rec)
		return nil
	}))
	w.ok(s.Commit(ctx, b))
	w.ok(s.Close())
	w.restartBackend()
	w.open()
	w.ok(w.Heartbeat(ctx, owner, session))
	w.good(w.OptimStep(ctx, w.step(run, 6)))
	if list, total, err := w.Runs(ctx, owner, RunQuery{ProjectID: "p"}); err != nil || total != 1 || list[0].ID != run {
		t.Errorf("runs %+v, %v", list, err)
	}
	if _, total, err := w.Runs(ctx, owner, RunQuery{}); err != nil || total != 3 {
		t.Errorf("%d runs, %v", total, err)
	}
	if list, err := w.StorageUsage(ctx, owner, "p"); err != nil || len(list) != 1 || list[0].Checkpoints != 1 {
		t.Errorf("storage %+v, %v", list, err)
	}
	for _, id := range append(ended[:], session) {
		if info, err := w.Session(ctx, owner, id); err != nil || string(info.UserMetadata) != string(large) {
			t.Errorf("session %s has %d bytes of metadata, %v", id, len(info.UserMetadata), err)
		}
	}
	w.Core.mu.Lock()
	for _, id := range ended {
		if s := w.sessions[id]; s == nil || len(s.UserMetadata) > maxInline || len(s.unwritten) > 0 {
			t.Errorf("an ended session keeps its metadata in memory: %+v", s)
		}
	}
	w.Core.mu.Unlock()
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	clock.add(retireAfter + time.Second)
	w.quiet()
	w.restart()
	for _, id := range append(ended[:], session) {
		if info, err := w.Session(ctx, owner, id); err != nil || string(info.UserMetadata) != string(large) {
			t.Errorf("in the end session %s has %d bytes of metadata, %v", id, len(info.UserMetadata), err)
		}
	}
	if _, err := w.WeightsInfo(ctx, owner, "", path); err != nil {
		t.Error(err)
	}
}

// TestLargeResultsAreReduced keeps of a large result what was recorded for training, from when its session's results go until a day later.
func TestLargeResultsAreReduced(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	session := w.session()
	id := w.baseSampler(session, 0)
	large := w.sample(id, 0)
	large.NumSamples, large.TopKSampledLogprobs, large.Params.MaxTokens = 64, 60, intp(40)
	small := w.sample(id, 1)
	sampled := w.sampled(large)
	w.sampled(small)
	stored := func() int64 {
		t.Helper()
		rec, err := w.store.Get(ctx, inResults, id+":0")
		w.ok(err)
		payload, err := w.store.Payload(ctx, rec)
		w.ok(err)
		return int64(len(payload))
	}
	before, tokens := stored(), 0
	for _, s := range sampled.Sequences {
		tokens += len(s.Tokens)
	}
	w.ok(w.FinishSession(ctx, owner, session, "success", ""))
	clock.add(retireAfter + time.Second)
	w.quiet()
	if _, err := w.Wait(ctx, owner, id+":0", 0); err != nil || stored() != before {
		t.Errorf("too early: %v", err)
	}
	clock.add(w.cfg.ResultsKept)
	w.quiet()
	if n := stored(); n > int64(10*tokens) {
		t.Errorf("of %d bytes %d are left for %d tokens", before, n, tokens)
	}
	_, err := w.Wait(ctx, owner, id+":0", 0)
	w.refused(err, KindNotFound, "not kept any more")
	if _, err := w.Wait(ctx, owner, id+":1", 0); err != nil {
		t.Errorf("a small result: %v", err)
	}
	w.restart()
	got, err := w.recordedSequence(ctx, owner, id+":0:63", map[string]*SampleResult{})
	if err != nil || fmt.Sprint(got.Tokens, got.Logprobs) != fmt.Sprint(sampled.Sequences[63].Tokens, sampled.Sequences[63].Logprobs) {
		t.Errorf("recorded is %+v, %v", got, err)
	}
}
