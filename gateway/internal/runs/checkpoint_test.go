package runs

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

func TestPaths(t *testing.T) {
	run := "0123:train:0"
	for _, c := range []struct {
		name, path string
		ok         bool
	}{
		{"weights", "tinker://" + run + "/weights/a", true},
		{"sampler", "tinker://" + run + "/sampler_weights/000020", true},
		{"external", "tinker://" + run + "/external_weights/a-b_c.d", true},
		{"another scheme", "file://" + run + "/weights/a", false},
		{"kind", "tinker://" + run + "/secrets/a", false},
		{"two parts", "tinker://" + run + "/a", false},
		{"four parts", "tinker://" + run + "/weights/a/b", false},
		{"parent", "tinker://" + run + "/weights/..", false},
		{"dot", "tinker://" + run + "/weights/.", false},
		{"hidden", "tinker://" + run + "/weights/.a", false},
		{"empty name", "tinker://" + run + "/weights/", false},
		{"empty run", "tinker:///weights/a", false},
		{"run is the parent", "tinker://../weights/a", false},
		{"null", "tinker://" + run + "/weights/a\x00", false},
		{"newline", "tinker://" + run + "/weights/a\n", false},
		{"backslash", `tinker://` + run + `/weights/a\b`, false},
		{"tilde", "tinker://" + run + "/weights/a~1", false},
		{"escaped slash", "tinker://" + run + "/weights/a%2fb", false},
		{"not ASCII", "tinker://" + run + "/weights/ä", false},
		{"longest", "tinker://" + run + "/weights/" + strings.Repeat("a", 200), true},
		{"too long", "tinker://" + run + "/weights/" + strings.Repeat("a", 201), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := ParsePath(c.path)
			if (err == nil) != c.ok || err == nil && p.String() != c.path {
				t.Fatalf("got %v, %v", p, err)
			}
		})
	}
	if _, err := ParseCheckpointID(run, "a"); KindOf(err) != KindInvalid || !strings.Contains(err.Error(), "weights/<name>") {
		t.Errorf("a bare id: %v", err)
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add("tinker://a:train:0/weights/b")
	f.Add("tinker://../../../etc/weights/..")
	f.Add("tinker://a/weights/%2e%2e")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePath(s)
		if err != nil {
			return
		}
		dir := filepath.Join("/data/checkpoints", p.RunID, string(p.Kind), p.Name+"~0")
		if p.String() != s || !strings.HasPrefix(dir, "/data/checkpoints/") || strings.Count(dir, "/") != 5 {
			t.Fatalf("%q leads to %s", s, dir)
		}
	})
}

func (w *world) files() []string {
	w.t.Helper()
	found, err := filepath.Glob(filepath.Join(w.dir, "checkpoints", "*", "*", "*"))
	w.ok(err)
	return found
}

func ttl(n int64) *int64 { return &n }

func TestCheckpoints(t *testing.T) {
	var now time.Time
	w := newWorld(t, func(w *world) {
		now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		w.config.Now = func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); now = now.Add(time.Millisecond); return now }
	})
	later := func(d time.Duration) { w.mu.Lock(); now = now.Add(d); w.mu.Unlock() }
	ctx := t.Context()
	session, err := w.CreateSession(ctx, NewSession{Owner: owner, ProjectID: "p"})
	w.ok(err)
	run := w.trained(session.ID, 0)
	a := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "a", UserMetadata: map[string]string{"k": "v"}, TTLSeconds: ttl(3600)})).Saved
	b := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 6), Name: "a"})).Saved
	x := w.good(w.SaveWeightsExternal(ctx, SaveWeightsExternal{Operation: at(run, 7), Name: "x"})).Saved
	if want := "tinker://" + run + "/weights/a"; a.Path != want || a.Size == 0 {
		t.Fatalf("saved %+v", a)
	}
	w.bad(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 8), Name: "a"}))(t, "ResourceAlreadyExists", a.Path)
	files := w.files()
	_, err = w.SaveWeights(ctx, SaveWeights{Operation: at(run, 10), Name: "b", UserMetadata: map[string]string{"k": strings.Repeat("v", maxMetadata)}})
	w.refused(err, KindInvalid, "user_metadata", "262145")
	w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 9), Name: "a", Overwrite: true, UserMetadata: map[string]string{"k": "w"}}))
	w.eventually(func() bool { return len(w.files()) == 3 })
	if slices.Equal(files, w.files()) {
		t.Error("the files were not replaced")
	}
	list, err := w.RunCheckpoints(ctx, owner, run)
	w.ok(err)
	var ids []string
	for _, i := range list {
		ids = append(ids, i.ID())
	}
	if want := []string{"sampler_weights/a", "external_weights/x", "weights/a"}; !slices.Equal(ids, want) {
		t.Errorf("list %v, want %v", ids, want)
	}
	if i := list[2]; i.UserMetadata["k"] != "w" || i.ExpiresAt != nil || !i.WithOptimizer || i.Step != 2 || i.LoRA.Rank != 4 {
		t.Errorf("checkpoint %+v", i)
	}
	page, total, err := w.Checkpoints(ctx, owner, Page{Limit: 1, Offset: 1}, []CheckpointKind{KindWeights, KindSampler})
	if err != nil || total != 2 || len(page) != 1 || page[0].Path != b.Path {
		t.Errorf("page %+v of %d, %v", page, total, err)
	}
	if _, _, err := w.Checkpoints(ctx, owner, Page{Offset: -1}, nil); KindOf(err) != KindInvalid {
		t.Errorf("negative offset: %v", err)
	}

	t.Run("strangers see what is published", func(t *testing.T) {
		_, err := w.WeightsInfo(ctx, other, "", b.Path)
		w.refused(err, KindNotFound)
		_, err = w.WeightsInfo(ctx, other, owner, b.Path) // with the owner's token
		w.ok(err)
		w.refused(w.PublishCheckpoint(ctx, other, b.Path, true), KindNotFound)
		w.ok(w.PublishCheckpoint(ctx, owner, b.Path, true))
		w.ok(w.PublishCheckpoint(ctx, owner, b.Path, true))
		info, err := w.WeightsInfo(ctx, other, "", b.Path)
		if err != nil || !info.Public {
			t.Errorf("published: %+v, %v", info, err)
		}
		list, err := w.RunCheckpoints(ctx, other, run)
		if err != nil || len(list) != 1 {
			t.Errorf("a stranger's list: %v, %v", list, err)
		}
		_, err = w.Run(ctx, other, run, ScopeAccessible)
		w.ok(err)
		_, err = w.Run(ctx, other, run, ScopeOwned)
		w.refused(err, KindNotFound)
		w.ok(w.PublishCheckpoint(ctx, owner, b.Path, false))
		_, err = w.RunCheckpoints(ctx, other, run)
		w.refused(err, KindNotFound)
	})
	t.Run("copy", func(t *testing.T) {
		req := CopyCheckpoint{Owner: owner, Source: a.Path, ProjectID: "q", TTLSeconds: ttl(7200), IdempotencyKey: "key"}
		one, err := w.CopyCheckpoint(ctx, req)
		w.ok(err)
		two, err := w.CopyCheckpoint(ctx, req)
		if err != nil || one.Path != two.Path || one.Path == a.Path || one.Kind != KindWeights || one.ExpiresAt == nil {
			t.Errorf("copies %+v, %+v, %v", one, two, err)
		}
		copying := func(is bool) {
			w.Core.mu.Lock()
			defer w.Core.mu.Unlock()
			w.copying[session.ID+":train:7"] = is
		}
		copying(true) // while a copy makes a run, nobody else makes it
		_, err = w.CreateRun(ctx, NewRun{Owner: owner, SessionID: session.ID, ModelSeq: 7, BaseModel: base, LoRA: LoRAConfig{Rank: 4, TrainAttn: true}})
		w.refused(err, KindInvalid, "model_seq_id", "a copy")
		_, err = w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: b.Path, SessionID: session.ID, ModelSeq: 7})
		w.refused(err, KindBusy, "another copy")
		copying(false)
		into, err := w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: b.Path, SessionID: session.ID, ModelSeq: 7})
		if want := "tinker://" + session.ID + ":train:7/sampler_weights/a"; err != nil || into.Path != want {
			t.Errorf("copy %+v, %v", into, err)
		}
		_, err = w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: a.Path, SessionID: session.ID, ModelSeq: 0})
		w.refused(err, KindInvalid, "exists")
		_, err = w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: other, Source: a.Path, ProjectID: "q"})
		w.refused(err, KindNotFound)
		w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session.ID, ModelSeq: 8, Path: one.Path, WithOptimizer: true}))
		later(3 * time.Hour)
		w.sweep(ctx, time.Hour)
		_, err = w.WeightsInfo(ctx, owner, "", one.Path)
		w.refused(err, KindNotFound)
		usage, err := w.StorageUsage(ctx, owner, "")
		w.ok(err)
		if len(usage) != 1 || usage[0].ProjectID != "p" || usage[0].Checkpoints != 4 || usage[0].Bytes == 0 {
			t.Errorf("usage %+v", usage)
		}
	})
	t.Run("ttl deletes", func(t *testing.T) {
		w.refused(w.SetCheckpointTTL(ctx, owner, a.Path, ttl(0)), KindInvalid, "ttl_seconds")
		w.ok(w.SetCheckpointTTL(ctx, owner, a.Path, ttl(60)))
		w.ok(w.SetCheckpointTTL(ctx, owner, x.Path, ttl(60)))
		w.ok(w.SetCheckpointTTL(ctx, owner, x.Path, nil))
		w.Core.mu.Lock()
		dir := w.file(w.checkpoints[a.Path].Dir)
		w.Core.mu.Unlock()
		later(2 * time.Minute)
		_, err := w.WeightsInfo(ctx, owner, "", a.Path) // before anything was swept
		w.refused(err, KindNotFound)
		w.sweep(ctx, time.Minute)
		w.eventually(func() bool { _, err := os.Stat(dir); return errors.Is(err, fs.ErrNotExist) })
		_, err = w.WeightsInfo(ctx, owner, "", x.Path)
		w.ok(err)
	})
	t.Run("delete", func(t *testing.T) {
		w.refused(w.DeleteCheckpoint(ctx, other, b.Path, "k"), KindNotFound)
		w.ok(w.DeleteCheckpoint(ctx, owner, b.Path, "k"))
		w.ok(w.DeleteCheckpoint(ctx, owner, b.Path, "k"))
		w.refused(w.DeleteCheckpoint(ctx, owner, b.Path, "another"), KindNotFound)
		w.refused(w.DeleteCheckpoint(ctx, owner, "tinker://"+run+"/weights/../../x", ""), KindInvalid)
	})
	t.Run("audit", func(t *testing.T) {
		entries, err := w.Audit(ctx, owner, "checkpoints", time.Time{})
		w.ok(err)
		counts := map[string]int{}
		for _, e := range entries {
			counts[e.Event]++
		}
		if want := "map[checkpoint_copied:2 checkpoint_created:4 checkpoint_deleted:1 checkpoint_expired:2 checkpoint_published:1 checkpoint_ttl_set:3 checkpoint_unpublished:1]"; fmt.Sprint(counts) != want {
			t.Errorf("entries %v, want %v", counts, want)
		}
		if entries, err := w.Audit(ctx, other, "all", time.Time{}); err != nil || len(entries) != 0 {
			t.Errorf("a stranger's entries %v, %v", entries, err)
		}
		_, err = w.Audit(ctx, owner, "nope", time.Time{})
		w.refused(err, KindInvalid)
	})
	t.Run("usage", func(t *testing.T) {
		events, sessions, err := w.Usage(ctx, owner, now.Add(-13*24*time.Hour), now.Add(time.Hour))
		w.ok(err)
		sums := map[UsageType]int64{}
		for _, e := range events {
			sums[e.Type] += e.Count
		}
		if sums[UsageTraining] != 8 || sums[UsageCheckpoint] != 6 || sums[UsageStorageByteSecs] == 0 || len(sessions) != 1 {
			t.Errorf("sums %v, sessions %v", sums, sessions)
		}
		_, _, err = w.Usage(ctx, owner, now.Add(-20*24*time.Hour), now)
		w.refused(err, KindInvalid, "14 days")
	})
	t.Run("left-over files are set aside at the next start", func(t *testing.T) {
		stray := filepath.Join("checkpoints", run, "weights", "stray~1")
		w.ok(os.MkdirAll(w.file(stray), 0o700))
		w.restart()
		if _, err := os.Stat(w.file(stray)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is still there: %v", err)
		}
		if found, _ := filepath.Glob(filepath.Join(w.dir, unclaimedDir, "*", escapeGlob(stray))); len(found) != 1 {
			t.Errorf("unclaimed has %v", found)
		}
		_, err := w.WeightsInfo(ctx, owner, "", x.Path)
		w.ok(err)
	})
}

func TestArchiveFilesAndImport(t *testing.T) {
	var later atomic.Int64 // seconds
	w := newWorld(t, func(w *world) {
		w.config.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load()) * time.Second) }
	})
	ctx := t.Context()
	session := w.session()
	run := w.trained(session, 0)
	state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 6), Name: "s"})).Saved.Path
	external := w.good(w.SaveWeightsExternal(ctx, SaveWeightsExternal{Operation: at(run, 7), Name: "x"})).Saved.Path
	later.Store(100)
	savedLater := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 8), Name: "later"})).Saved.Path

	_, _, err := w.ArchiveToken(ctx, Requester{Owner: owner}, state)
	w.refused(err, KindInvalid, "cannot be downloaded")
	_, _, err = w.ArchiveToken(ctx, Requester{Owner: other}, saved)
	w.refused(err, KindNotFound)
	token, expires, err := w.ArchiveToken(ctx, Requester{Owner: owner}, saved)
	w.ok(err)
	if !expires.After(time.Now()) {
		t.Errorf("expires %v", expires)
	}
	read := func(token string) (archive bytes.Buffer) {
		_, write, err := w.OpenArchive(ctx, token)
		w.ok(err)
		w.ok(write(&archive))
		return archive
	}
	archive := read(token)
	laterToken, _, err := w.ArchiveToken(ctx, Requester{Owner: owner}, savedLater)
	w.ok(err)
	if again := read(laterToken); !bytes.Equal(again.Bytes(), archive.Bytes()) {
		t.Error("the archive of the same weights that were saved again has other bytes")
	}
	var names []string
	in := tar.NewReader(bytes.NewReader(archive.Bytes()))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		w.ok(err)
		names = append(names, h.Name)
	}
	for _, want := range []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.CompleteFile} {
		if !slices.Contains(names, want) {
			t.Errorf("the archive has %v, not %s", names, want)
		}
	}
	for i := range token {
		for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=. \r\n" {
			changed, inserted := token[:i]+string(c)+token[i+1:], token[:i]+string(c)+token[i:]
			if _, _, err := w.OpenArchive(ctx, changed); err == nil && changed != token {
				t.Fatalf("a token with %q as byte %d was accepted", c, i)
			}
			if _, _, err := w.OpenArchive(ctx, inserted); err == nil {
				t.Fatalf("a token with %q before byte %d was accepted", c, i)
			}
		}
	}
	by := Requester{Owner: owner, Key: "of a key"}
	linked, _, err := w.ArchiveToken(ctx, by, saved)
	w.ok(err)
	if got, err := w.Requester(linked); got != by || err != nil {
		t.Errorf("the link is of %+v, %v", got, err)
	}
	for _, bad := range []string{"", ".", "a.b", strings.Repeat("a", 1<<20)} {
		_, _, err := w.OpenArchive(ctx, bad)
		w.refused(err, KindForbidden)
	}

	files, err := w.FileTokens(ctx, Requester{Owner: owner}, external)
	w.ok(err)
	for name, token := range files.Tokens {
		got, _, f, err := w.OpenFile(ctx, token)
		w.ok(err)
		_, err = io.Copy(io.Discard, f)
		w.ok(errors.Join(err, f.Close()))
		if got != name {
			t.Errorf("the token of %s opened %s", name, got)
		}
		if _, _, err := w.OpenArchive(ctx, token); KindOf(err) != KindForbidden {
			t.Errorf("a file's token opened an archive: %v", err)
		}
	}
	if _, _, _, err := w.OpenFile(ctx, token); KindOf(err) != KindForbidden {
		t.Errorf("an archive's token opened a file: %v", err)
	}
	_, err = w.FileTokens(ctx, Requester{Owner: owner}, saved)
	w.refused(err, KindInvalid)

	sampler, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 0, ModelPath: saved})
	w.ok(err)
	want := fmt.Sprint(w.sampled(w.sample(sampler.ID, 0)).Sequences)
	training, sampling, err := w.Import(ctx, Import{Owner: owner, BaseModel: "test/alias", Name: "mine", Source: "hf://org/name@main", Tar: bytes.NewReader(archive.Bytes())})
	w.ok(err)
	if o := training.Origin; o == nil || o.Source != "hf://org/name@main" || !o.valid() || *sampling.Origin != *o {
		t.Errorf("origins %+v and %+v", training.Origin, sampling.Origin)
	}
	copied, err := w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: owner, Source: training.Path, ProjectID: "origins", IdempotencyKey: "k"})
	w.ok(err)
	list, more, err := w.Imports(ctx, owner)
	if err != nil || more || len(list) != 2 || list[0].Path != training.Path || list[1].Path != copied.Path || *list[1].Origin != *training.Origin {
		t.Errorf("imports %+v, %v, %v", list, more, err)
	}
	w.ok(w.PublishCheckpoint(ctx, owner, training.Path, true))
	theirs, err := w.CopyCheckpoint(ctx, CopyCheckpoint{Owner: other, Source: training.Path, ProjectID: "origins", IdempotencyKey: "k"})
	if err != nil || theirs.Origin.Source != "" || theirs.Origin.SHA256 != training.Origin.SHA256 {
		t.Errorf("somebody else's copy: %+v, %v", theirs.Origin, err)
	}
	for who, wanted := range map[string]Origin{owner: *training.Origin, other: {SHA256: training.Origin.SHA256}} {
		e, err := w.Export(ctx, who, training.Path, "")
		w.ok(err)
		if e.Close(); *e.Origin != wanted || e.Began != nil {
			t.Errorf("%s exports %+v, %+v", who, e.Origin, e.Began)
		}
	}
	w.ok(w.DeleteCheckpoint(ctx, other, theirs.Path, ""))
	w.ok(w.PublishCheckpoint(ctx, owner, training.Path, false))
	if list, _, _ := w.Imports(ctx, other); len(list) != 0 {
		t.Errorf("somebody else has imported %+v", list)
	}
	for _, source := range []string{"a\nb", "\x1b[31m", "\u202e", strings.Repeat("x", maxLabel+1), "\xff"} {
		_, _, err := w.Import(ctx, Import{Owner: owner, BaseModel: "test/alias", Name: "mine", Source: source, Tar: bytes.NewReader(archive.Bytes())})
		w.refused(err, KindInvalid, "source")
	}
	second, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 1, ModelPath: sampling.Path})
	w.ok(err)
	if got := fmt.Sprint(w.sampled(w.sample(second.ID, 0)).Sequences); got != want {
		t.Errorf("the imported adapter samples %s, the original %s", got, want)
	}
	_, err = w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: training.Path, WithOptimizer: true})
	w.refused(err, KindInvalid, "no optimizer state")
	loaded := w.good(w.CreateRunFromCheckpoint(ctx, NewRunFromCheckpoint{Owner: owner, SessionID: session, ModelSeq: 1, Path: training.Path})).Loaded.RunID
	if info, err := w.Run(ctx, owner, loaded, ScopeOwned); err != nil || info.Began == nil || *info.Began != *training.Origin {
		t.Errorf("a run of an import began with %+v: %v", info.Began, err)
	}
	if e, err := w.Export(ctx, owner, loaded, ""); err != nil || e.Origin != nil || *e.Began != *training.Origin {
		t.Errorf("its export: %v", err)
	} else {
		e.Close()
	}
	a := w.good(w.ForwardBackward(ctx, w.pass(loaded, 1))).ForwardBackward.Metrics["loss:sum"]
	if b := w.good(w.ForwardBackward(ctx, w.pass(run, 9))).ForwardBackward.Metrics["loss:sum"]; a != b {
		t.Errorf("the imported adapter trains from loss %v, the original from %v", a, b)
	}

	w.ok(w.DeleteCheckpoint(ctx, owner, saved, ""))
	_, _, err = w.OpenArchive(ctx, token)
	w.refused(err, KindNotFound)
	s, err := w.Sample(ctx, w.sample(sampler.ID, 9))
	if err == nil {
		t.Errorf("a sampler of a deleted checkpoint accepted %v", s)
	}

	t.Run("bad uploads", func(t *testing.T) {
		pack := func(headers ...tar.Header) io.Reader {
			var b bytes.Buffer
			out := tar.NewWriter(&b)
			for _, h := range headers {
				h.Mode = 0o644
				w.ok(out.WriteHeader(&h))
				_, err := out.Write(make([]byte, h.Size))
				w.ok(err)
			}
			w.ok(out.Close())
			return &b
		}
		for _, c := range []struct {
			name, words string
			tar         io.Reader
			max         int64
		}{
			{"no tar", "not a tar", strings.NewReader(strings.Repeat("x", 2000)), 0},
			{"empty", "no adapter_config.json", pack(), 0},
			{"outside", "no adapter_config.json", pack(tar.Header{Name: "../../adapter_config.json", Size: 1}), 0},
			{"link", "regular file", pack(tar.Header{Name: plugins.AdapterConfigFile, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), 0},
			{"twice", "twice", pack(tar.Header{Name: plugins.AdapterConfigFile, Size: 1}, tar.Header{Name: plugins.AdapterConfigFile, Size: 1}), 0},
			{"too large", "too large", pack(tar.Header{Name: plugins.AdapterConfigFile, Size: 100}), 50},
			{"cut off", "", io.LimitReader(bytes.NewReader(archive.Bytes()), 700), 0},
			{"nonsense", "cannot be used", pack(tar.Header{Name: plugins.AdapterConfigFile, Size: 9}, tar.Header{Name: plugins.AdapterWeightsFile, Size: 9}), 0},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, _, err := w.Import(ctx, Import{Owner: owner, BaseModel: base, Name: "n", Tar: c.tar, MaxBytes: c.max})
				w.refused(err, KindInvalid, c.words)
			})
		}
		var large bytes.Buffer
		w.ok(tar.NewWriter(&large).WriteHeader(&tar.Header{Name: plugins.AdapterConfigFile, Mode: 0o644, Size: 1 << 50}))
		_, _, err := w.Import(ctx, Import{Owner: owner, BaseModel: base, Name: "n", Tar: &large, MaxBytes: 1 << 60})
		w.refused(err, KindUnavailable, "MiB are needed")
		if left, _ := filepath.Glob(filepath.Join(w.dir, "incoming", "*")); len(left) != 0 {
			t.Errorf("left over: %v", left)
		}
	})
}

// A full disk is not the uploader's mistake: it may be tried again.
func TestUploadError(t *testing.T) {
	w := &world{t: t}
	w.refused(uploadError(errors.Join(&fs.PathError{Op: "write", Path: "/data/incoming/x", Err: syscall.ENOSPC}, nil)), KindUnavailable, "no space left")
	w.refused(uploadError(io.ErrUnexpectedEOF), KindInvalid, "ends early")
}

// A checkpoint whose files are not what they were is refused under the name that its user knows, and is no fault of that user's.
func TestDamagedCheckpointIsNamed(t *testing.T) {
	w := newWorld(t, nil)
	ctx := t.Context()
	session := w.session()
	run := w.trained(session, 0)
	state := w.good(w.SaveWeights(ctx, SaveWeights{Operation: at(run, 5), Name: "state"})).Saved.Path
	saved := w.good(w.SaveWeightsForSampler(ctx, SaveWeightsForSampler{Operation: at(run, 6), Name: "s"})).Saved.Path
	for path, damage := range map[string]func(file string) error{
		state: func(file string) error { return os.Remove(filepath.Join(filepath.Dir(file), plugins.ManifestFile)) },
		saved: func(file string) error {
			b, err := os.ReadFile(file)
			if err == nil {
				b[len(b)-1] ^= 1
				err = os.WriteFile(file, b, 0o600)
			}
			return err
		},
	} {
		w.Core.mu.Lock()
		file := filepath.Join(w.file(w.checkpoints[path].Dir), plugins.AdapterWeightsFile)
		w.Core.mu.Unlock()
		w.ok(os.Chmod(filepath.Dir(file), 0o700))
		w.ok(os.Chmod(file, 0o600))
		w.ok(damage(file))
	}
	fresh := w.newRun(session, 1)
	s, err := w.LoadWeights(ctx, LoadWeights{Operation: at(fresh, 1), Path: state, WithOptimizer: true})
	w.ok(err)
	failed := func(id, path string) {
		t.Helper()
		if f := w.outcome(id).Failure; f == nil || !strings.HasPrefix(f.Message, "checkpoint "+path+": ") || strings.Contains(f.Message, w.dir) || f.Category != CategoryServer {
			t.Errorf("failure %+v, want one of %s", f, path)
		}
	}
	failed(s.RequestID, state)
	sampler, err := w.CreateSampler(ctx, NewSampler{Owner: owner, SessionID: session, Seq: 5, ModelPath: saved})
	w.ok(err)
	sample, err := w.Sample(ctx, w.sample(sampler.ID, 0))
	w.ok(err)
	failed(sample.RequestID, saved)
}
