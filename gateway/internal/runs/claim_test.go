package runs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// offline closes the server and opens what it kept.
func (w *world) offline(do func(v *Inventory)) {
	w.t.Helper()
	s, err := store.Open(w.t.Context(), store.Options{Dir: w.dir})
	w.ok(err)
	v, err := OpenInventory(w.t.Context(), s, w.dir)
	w.ok(err)
	do(v)
	w.ok(s.Close())
}

// loseStore removes everything that is not a file of checkpoints.
func (w *world) loseStore() {
	w.t.Helper()
	entries, err := os.ReadDir(w.dir)
	w.ok(err)
	for _, e := range entries {
		if _, place := places[e.Name()]; !place && e.Name() != unclaimedDir {
			w.ok(os.RemoveAll(filepath.Join(w.dir, e.Name())))
		}
	}
}

func (w *world) archive(path string) []byte {
	w.t.Helper()
	token, _, err := w.ArchiveToken(w.t.Context(), Requester{Owner: owner}, path)
	w.ok(err)
	_, write, err := w.OpenArchive(w.t.Context(), token)
	w.ok(err)
	var b bytes.Buffer
	w.ok(write(&b))
	return b.Bytes()
}

// After the store is lost for good every checkpoint comes back from its own files: listed, owned, resumed from, sampled and exported as before. A damaged one is named and left. It does not matter whether the server
// was started in between, which sets the files aside.
func TestClaimAfterTheStoreIsLost(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprintf("started in between %v", started), func(t *testing.T) {
			w := newWorld(t, nil)
			ctx := t.Context()
			session := w.session()
			run := w.trained(session, 0)
			metadata := map[string]string{"k": "v"}
			state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state", UserMetadata: metadata, TTLSeconds: ttl(360_000)})).Saved.Path
			sampler := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 6), Name: "s"})).Saved.Path
			damaged := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 7), Name: "damaged"})).Saved.Path
			copied, err := w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: state, ProjectID: "q", IdempotencyKey: "key"})
			w.ok(err)
			training, _, err := w.Import(ctx, Import{Owner: owner, BaseModel: "test/alias", Name: "mine", Source: "hf://org/name@0123", Tar: bytes.NewReader(w.archive(sampler))})
			w.ok(err)
			large := json.RawMessage(`{"notes":"` + strings.Repeat("n", 2*maxInline) + `"}`)
			noted := w.good(w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session, ModelSeq: 1, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}, UserMetadata: large})).CreatedRun.RunID
			w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(noted, 1), Name: "noted"}))
			w.ok(w.PublishCheckpoint(ctx, owner, sampler, true))
			w.ok(w.SetCheckpointTTL(ctx, owner, copied.Path, ttl(7200)))
			w.eventually(func() bool { return !w.undescribed.busy })
			archive := w.archive(sampler)
			before, _, err := w.Checkpoints(ctx, owner, Page{}, nil)
			w.ok(err)
			before = slices.DeleteFunc(before, func(i CheckpointInfo) bool { return i.Path == damaged })
			runs, count, err := w.Runs(ctx, owner, RunQuery{})
			w.ok(err)
			loss := w.good(w.ForwardBackward(ctx, w.pass(run, 8))).ForwardBackward.Metrics["loss:sum"]
			broken := filepath.Join(w.file(w.checkpoints[damaged].Dir), plugins.AdapterWeightsFile)
			w.close()
			b, err := os.ReadFile(broken)
			w.ok(err)
			b[len(b)-1] ^= 1
			w.ok(os.WriteFile(broken, b, 0o600))
			w.loseStore()
			if started {
				w.restartBackend()
				w.open()
				if list, n, err := w.Checkpoints(ctx, owner, Page{}, nil); err != nil || n != 0 {
					t.Fatalf("an empty store lists %v, %v", list, err)
				}
				w.close()
			}
			var faults []string
			w.offline(func(v *Inventory) {
				items, err := v.Items(ctx)
				w.ok(err)
				for _, item := range items {
					if item.What != "checkpoint" {
						continue
					}
					if started && (item.Why == "" || item.When.IsZero()) {
						t.Errorf("%s has no note: %+v", item.Path, item)
					}
					claimed, err := v.Claim(ctx, item, "")
					if err != nil {
						faults = append(faults, err.Error())
						continue
					}
					if claimed.Checkpoint != item.Checkpoint || claimed.Owner != owner || claimed.Note != "" {
						t.Errorf("claimed %+v", claimed)
					}
				}
				if missing, err := v.Missing(ctx); err != nil || len(missing) != 0 {
					t.Errorf("missing %v, %v", missing, err)
				}
			})
			if len(faults) != 1 || !strings.Contains(faults[0], "damaged~") || !strings.Contains(faults[0], "checksum") {
				t.Errorf("faults %q", faults)
			}
			w.restartBackend()
			w.open()
			after, _, err := w.Checkpoints(ctx, owner, Page{}, nil)
			w.ok(err)
			if len(after) != len(before) {
				t.Fatalf("%d of %d checkpoints came back", len(after), len(before))
			}
			for i := range after {
				if got, want := string(mustJSON(after[i])), string(mustJSON(before[i])); got != want {
					t.Errorf("checkpoint\n%s, was\n%s", got, want)
				}
			}
			if list, n, err := w.Runs(ctx, owner, RunQuery{}); err != nil || n != count || len(list) != len(runs) {
				t.Errorf("%d runs, %v", n, err)
			}
			if list, n, err := w.Runs(ctx, owner, RunQuery{ProjectID: "q"}); err != nil || n != 1 || list[0].ID != copied.RunID {
				t.Errorf("runs of the project: %v, %v", list, err)
			}
			if info, err := w.Run(ctx, owner, noted, ScopeOwned); err != nil || string(info.UserMetadata) != string(large) {
				t.Errorf("metadata of the run: %d bytes, %v", len(info.UserMetadata), err)
			}
			if list, err := w.RunCheckpoints(ctx, owner, run); err != nil || len(list) != 2 {
				t.Errorf("checkpoints of the run: %v, %v", list, err)
			}
			if _, err := w.WeightsInfo(ctx, other, "", sampler); err != nil {
				t.Errorf("what was public is not: %v", err)
			}
			_, err = w.WeightsInfo(ctx, other, "", state)
			w.refused(err, KindNotFound)
			if !bytes.Equal(w.archive(sampler), archive) {
				t.Error("the archive has other bytes")
			}
			next := w.session()
			for n, from := range []string{state, copied.Path} {
				resumed := w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: next, ModelSeq: int64(n), Path: from, WithOptimizer: true})).Loaded.RunID
				if got := w.good(w.ForwardBackward(ctx, w.pass(resumed, 1))).ForwardBackward.Metrics["loss:sum"]; got != loss {
					t.Errorf("%s goes on with loss %v, want %v", from, got, loss)
				}
			}
			w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: next, ModelSeq: 3, Path: training.Path}))
			smp, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: next, Seq: 9, ModelPath: sampler})
			w.ok(err)
			w.sampled(w.sample(smp.ID, 0))
			if started {
				left := w.tree(unclaimedDir)
				for file := range left {
					if !strings.Contains(file, "damaged~") && !strings.HasSuffix(file, unclaimedNote) && !strings.Contains(file, "recovery") {
						t.Errorf("%s is left", file)
					}
				}
			}
		})
	}
}

// A run that was being trained when the store was lost goes on from its newest recovery point.
func TestClaimOfRecoveryPoint(t *testing.T) {
	w := newWorld(t, (*world).pointsAlways)
	ctx := t.Context()
	run := w.newRun(w.session(), 0)
	for i := range int64(2) {
		w.good(w.ForwardBackward(ctx, w.pass(run, 2*i+1)))
		w.good(w.OptimStep(ctx, w.step(run, 2*i+2)))
		w.eventually(func() bool {
			r := w.runs[run]
			return len(r.points) == 1 && r.points[0].Seq == 2*i+2 && !w.disk.busy && !r.writing && !r.pruning && !w.erasures.busy
		})
	}
	want := w.good(w.ForwardBackward(ctx, w.pass(run, 5))).ForwardBackward.Metrics["loss:sum"]
	w.close()
	w.loseStore()
	w.offline(func(v *Inventory) {
		items, err := v.Items(ctx)
		w.ok(err)
		if len(items) != 1 || items[0].What != "recovery point" || items[0].Checkpoint != "tinker://"+run+"/weights/recovered-4" {
			t.Fatalf("items %+v", items)
		}
		_, err = v.Claim(ctx, items[0], "")
		w.ok(err)
	})
	w.restartBackend()
	w.open()
	again := w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: w.session(), Path: "tinker://" + run + "/weights/recovered-4", WithOptimizer: true})).Loaded.RunID
	if got := w.good(w.ForwardBackward(ctx, w.pass(again, 1))).ForwardBackward.Metrics["loss:sum"]; got != want {
		t.Errorf("loss %v, want %v", got, want)
	}
}

// What there was before descriptions is claimed by what its files say; whose it is somebody has to say, unless something else of its run does.
func TestClaimWithoutDescription(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a", UserMetadata: map[string]string{"k": "v"}})).Saved.Path
	dir := w.file(w.checkpoints[path].Dir)
	w.ok(os.Remove(filepath.Join(dir, descriptionFile)))
	w.close()
	w.loseStore()
	w.offline(func(v *Inventory) {
		items, err := v.Items(ctx)
		w.ok(err)
		if len(items) != 1 || !items[0].Whole || !strings.Contains(items[0].Fault, "--owner") {
			t.Fatalf("items %+v", items)
		}
		_, err = v.Claim(ctx, items[0], "")
		if err == nil || !strings.Contains(err.Error(), "--owner") {
			t.Errorf("claimed without an owner: %v", err)
		}
		_, err = v.Claim(ctx, items[0], owner)
		w.ok(err)
	})
	w.restartBackend()
	w.open()
	info, err := w.WeightsInfo(ctx, owner, "", path)
	w.ok(err)
	if info.Step != 2 || !info.WithOptimizer || info.LoRA.Rank != 4 || info.UserMetadata["k"] != "v" || info.BaseModel != base {
		t.Errorf("checkpoint %+v", info)
	}
}

// No record is replaced by a claim, and what is claimed twice, or expired, is told.
func TestClaimReplacesNothing(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a", TTLSeconds: ttl(60)})).Saved.Path
	record := w.checkpoints[path].checkpointRecord
	w.close()
	aside := filepath.Join(unclaimedDir, "20260101T000000Z", "checkpoints", run, "weights", "a~00000000")
	w.ok(os.MkdirAll(filepath.Dir(w.file(aside)), 0o700))
	w.ok(os.CopyFS(w.file(aside), os.DirFS(w.file(record.Dir))))
	claim := func(words string) (made Claimed) {
		w.offline(func(v *Inventory) {
			v.now = clock.time
			items, err := v.Items(ctx)
			w.ok(err)
			if len(items) != 1 {
				t.Fatalf("items %+v", items)
			}
			made, err = v.Claim(ctx, items[0], "")
			w.ok(err)
			if !strings.Contains(made.Note, words) {
				t.Errorf("note %q", made.Note)
			}
		})
		return made
	}
	if made := claim("another checkpoint"); made.Checkpoint != path+"-recovered" {
		t.Errorf("claimed %+v", made)
	}
	// Its files are moved away: then the record takes them back.
	w.ok(os.MkdirAll(filepath.Join(w.dir, unclaimedDir, "x", filepath.Dir(record.Dir)), 0o700))
	w.ok(os.Rename(w.file(record.Dir), filepath.Join(w.dir, unclaimedDir, "x", record.Dir)))
	if made := claim("stays as it is"); made.Checkpoint != path {
		t.Errorf("claimed %+v", made)
	}
	clock.add(time.Hour)
	w.ok(os.MkdirAll(filepath.Dir(w.file(aside)), 0o700))
	w.ok(os.CopyFS(w.file(aside), os.DirFS(w.file(record.Dir))))
	if made := claim("time to live had ended"); made.Checkpoint != path+"-recovered-2" {
		t.Errorf("claimed %+v", made)
	}
	w.restartBackend()
	w.open()
	w.Core.mu.Lock()
	defer w.Core.mu.Unlock()
	if got, want := string(mustJSON(w.checkpoints[path].checkpointRecord)), string(mustJSON(record)); got != want {
		t.Errorf("the record is %s, was %s", got, want)
	}
	if cp := w.checkpoints[path+"-recovered-2"]; cp == nil || cp.ExpiresAt != nil {
		t.Errorf("%+v", cp)
	}
}

// Whatever somebody has put into the folders, listing ends, claims what is whole only, and touches nothing outside.
func TestHostileUnclaimedFiles(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	good := w.file(w.checkpoints[w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a"})).Saved.Path].Dir)
	manifest := func(change func(*plugins.Manifest)) func(dir string) {
		return func(dir string) {
			b, err := os.ReadFile(filepath.Join(dir, plugins.ManifestFile))
			w.ok(err)
			m, err := plugins.ParseManifest(b)
			w.ok(err)
			change(m)
			b, err = m.Encode()
			w.ok(err)
			w.ok(os.WriteFile(filepath.Join(dir, plugins.ManifestFile), b, 0o600))
		}
	}
	describe := func(change func(*description)) func(dir string) {
		return func(dir string) {
			d, err := readDescription(dir)
			w.ok(err)
			change(d)
			w.ok(os.WriteFile(filepath.Join(dir, descriptionFile), d.encode(), 0o600))
		}
	}
	secret := filepath.Join(t.TempDir(), "secret")
	w.ok(os.WriteFile(secret, []byte("secret"), 0o600))
	cases := map[string]func(dir string){
		"no manifest": func(dir string) { w.ok(os.Remove(filepath.Join(dir, plugins.ManifestFile))) },
		"a manifest of zeros": func(dir string) {
			w.ok(os.WriteFile(filepath.Join(dir, plugins.ManifestFile), make([]byte, 1000), 0o600))
		},
		"a manifest without end": func(dir string) { w.ok(os.Truncate(filepath.Join(dir, plugins.ManifestFile), 1<<40)) },
		"a file elsewhere":       manifest(func(m *plugins.Manifest) { m.SHA256["../../../x"] = "00" }),
		"no checksum":            manifest(func(m *plugins.Manifest) { delete(m.SHA256, plugins.AdapterWeightsFile) }),
		"another scope":          manifest(func(m *plugins.Manifest) { m.Scope = "everything" }),
		"a changed manifest":     manifest(func(m *plugins.Manifest) { m.Step++ }),
		"another format": func(dir string) {
			w.ok(os.WriteFile(filepath.Join(dir, plugins.ManifestFile), mustJSON(plugins.Manifest{Format: 7}), 0o600))
		},
		"a rank that is none": manifest(func(m *plugins.Manifest) { m.Rank = 1 << 40 }),
		"a link to a file": func(dir string) {
			w.ok(os.Remove(filepath.Join(dir, plugins.AdapterConfigFile)))
			w.ok(os.Symlink(secret, filepath.Join(dir, plugins.AdapterConfigFile)))
		},
		"a link as its manifest": func(dir string) {
			w.ok(os.Remove(filepath.Join(dir, plugins.ManifestFile)))
			w.ok(os.Symlink("/dev/zero", filepath.Join(dir, plugins.ManifestFile)))
		},
		"a missing file":         func(dir string) { w.ok(os.Remove(filepath.Join(dir, plugins.OptimizerFile))) },
		"a cut file":             func(dir string) { w.ok(os.Truncate(filepath.Join(dir, plugins.OptimizerFile), 100)) },
		"another's description":  describe(func(d *description) { d.Checkpoint.RunID = "another:train:0" }),
		"another owner":          describe(func(d *description) { d.Checkpoint.Owner = other }),
		"an owner without end":   describe(func(d *description) { d.Checkpoint.Owner = strings.Repeat("x", 10_000) }),
		"metadata that are none": describe(func(d *description) { d.Run.UserMetadata = json.RawMessage(`[1]`) }),
		"metadata without end": describe(func(d *description) {
			d.Checkpoint.UserMetadata = map[string]string{"k": strings.Repeat("v", maxMetadata)}
		}),
		"a folder for a file": func(dir string) {
			w.ok(os.Remove(filepath.Join(dir, plugins.CompleteFile)))
			w.ok(os.Mkdir(filepath.Join(dir, plugins.CompleteFile), 0o700))
		},
	}
	w.close()
	stamp := filepath.Join(unclaimedDir, "20260101T000000Z")
	n := 0
	names := map[string]string{}
	for name, spoil := range cases {
		dir := filepath.Join(stamp, "checkpoints", run, "weights", fmt.Sprintf("spoilt-%d~00000000", n))
		n++
		names[dir] = name
		w.ok(os.MkdirAll(filepath.Dir(w.file(dir)), 0o700))
		w.ok(os.CopyFS(w.file(dir), os.DirFS(good)))
		spoil(w.file(dir))
	}
	for _, odd := range []string{"checkpoints/.../weights/a~0", "checkpoints/" + run + "/secrets/a~0", "checkpoints/" + run + "/weights/~0", "snapshots/" + run + "/a", "incoming/x"} {
		w.ok(os.MkdirAll(filepath.Dir(w.file(filepath.Join(stamp, odd))), 0o700))
		w.ok(os.CopyFS(w.file(filepath.Join(stamp, odd)), os.DirFS(good)))
		names[filepath.Join(stamp, odd)] = odd
	}
	w.ok(os.Symlink("/", w.file(filepath.Join(stamp, "checkpoints", run, "weights", "link~0"))))
	names[filepath.Join(stamp, "checkpoints", run, "weights", "link~0")] = "a link to everything"
	w.ok(os.WriteFile(w.file(filepath.Join(stamp, unclaimedNote)), []byte("{"), 0o600))
	w.offline(func(v *Inventory) {
		items, err := v.Items(ctx)
		w.ok(err)
		if len(items) != len(names) {
			t.Errorf("%d items, want %d", len(items), len(names))
		}
		for _, item := range items {
			if item.Fault == "" {
				t.Errorf("%s has no fault: %+v", names[item.Path], item)
			}
			if made, err := v.Claim(ctx, item, ""); err == nil {
				t.Errorf("%s was claimed: %+v", names[item.Path], made)
			}
		}
		for _, path := range []string{"checkpoints", unclaimedDir, stamp, "..", "/etc", stamp + "/../..", stamp + "/checkpoints", unclaimedDir + "/../checkpoints/" + run + "/weights/a~0", stamp + "/checkpoints/../../x/y"} {
			if _, err := v.Discard(path); err == nil {
				t.Errorf("%s was discarded", path)
			}
		}
		for _, item := range items {
			if _, err := v.Discard(item.Path); err != nil {
				t.Errorf("%s: %v", names[item.Path], err)
			}
		}
		if left := w.tree(unclaimedDir); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		if _, err := os.Lstat(w.file(unclaimedDir)); err == nil {
			entries, _ := os.ReadDir(w.file(unclaimedDir))
			if len(entries) != 0 {
				t.Errorf("left: %v", entries)
			}
		}
	})
	if b, err := os.ReadFile(secret); err != nil || string(b) != "secret" {
		t.Errorf("the secret: %q, %v", b, err)
	}
	w.restartBackend()
	w.open()
}

// Descriptions of older checkpoints are written in sweeps, and brought up to what the record says.
func TestDescriptionsAreMadeGood(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	path := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a"})).Saved.Path
	file := filepath.Join(w.file(w.checkpoints[path].Dir), descriptionFile)
	want, err := os.ReadFile(file)
	w.ok(err)
	for name, spoil := range map[string]func(){
		"missing": func() { w.ok(os.Remove(file)) },
		"stale": func() {
			d, _ := readDescription(filepath.Dir(file))
			d.Checkpoint.Public = true
			w.ok(os.WriteFile(file, d.encode(), 0o600))
		},
		"damaged": func() { w.ok(os.Truncate(file, 50)) },
	} {
		spoil()
		w.restart()
		w.sweep(ctx, time.Second)
		w.eventually(func() bool { return !w.undescribed.busy })
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: it is %s, %v", name, got, err)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if strings.Contains(string(w.archive(w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 6), Name: "s"})).Saved.Path)), descriptionFile) {
		t.Error("the archive has the description")
	}
}

func FuzzDescription(f *testing.F) {
	f.Add((&description{Checkpoint: CheckpointInfo{Path: "tinker://a:train:0/weights/b", Owner: "x"}}).encode())
	f.Add([]byte(`{"format":1,"sha256":"","description":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := decodeDescription(b); err == nil {
			if again, err := decodeDescription(d.encode()); err != nil || !bytes.Equal(again.encode(), d.encode()) {
				t.Fatalf("it is not what was written: %v", err)
			}
		}
	})
}

// A checkpoint whose files are damaged is not given out as if it were whole.
func TestDamagedExports(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	run := w.trained(w.session(), 0)
	path := w.good(w.SaveWeightsExternal(ctx, SaveWeightsExternal{Operation: at(run, 5), Name: "x"})).Saved.Path
	dir := w.file(w.checkpoints[path].Dir)
	archive, _, err := w.ArchiveToken(ctx, Requester{Owner: owner}, path)
	w.ok(err)
	files, err := w.FileTokens(ctx, Requester{Owner: owner}, path)
	w.ok(err)
	for name, token := range files.Tokens {
		if _, _, err := w.OpenArchive(ctx, archive); err != nil {
			t.Fatalf("whole: %v", err)
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		w.ok(err)
		w.ok(os.WriteFile(filepath.Join(dir, name), append([]byte("x"), b...), 0o600))
		for what, err := range map[string]error{
			"archive": func() error { _, _, err := w.OpenArchive(ctx, archive); return err }(),
			"file":    func() error { _, _, _, err := w.OpenFile(ctx, token); return err }(),
		} {
			if err == nil || KindOf(err) != 0 || !strings.Contains(err.Error(), path) {
				t.Errorf("%s with %s damaged: %v", what, name, err)
			}
		}
		w.ok(os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
}
