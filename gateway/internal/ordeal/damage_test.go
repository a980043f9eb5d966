package ordeal

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	damages    = flag.Int("damages", 24, "how many damages TestDamages does")
	damageSeed = flag.Uint64("damage-seed", 1, "what TestDamages draws them from")
	damageOnly = flag.Int("damage-only", -1, "only the n-th of them")
)

// ruin is something that happens to a file while no server runs.
type ruin struct {
	file string // within the data directory
	how  string // "flip", "cut", "zero", "remove", "older"
	seed uint64
}

func (r ruin) String() string { return r.how + " " + r.file }

// kindOf is what a file is of, so that every kind has its turn, however many files it has.
func kindOf(file string) string {
	parts := strings.Split(file, string(filepath.Separator))
	if len(parts) == 1 {
		return file
	}
	return parts[0] + "/" + strings.TrimLeft(filepath.Base(file), "0123456789")
}

// works is what a server's clients know of it before the damage.
type works struct {
	results     map[string]string // request id → what its future answers
	checkpoints map[string]string // path → digest of its archive or of its files
	run         string            // one that goes on
	next        string            // what the run's next pass answers
	seq         int
}

// TestDamages does one thing to one file of a data directory whose server was killed, and starts it: what is damaged is named, by a refusal to start or in the log, or it has no effect; no file of a checkpoint goes;
// and `tinsmith recover` brings back every checkpoint whose own files are whole.
func TestDamages(t *testing.T) {
	whole, older := t.TempDir(), t.TempDir()
	w := damageWorks(t, whole, older)
	var kinds []string
	byKind := map[string][]string{}
	for _, file := range filesOf(t, filepath.Join(whole, "data")) {
		kind := kindOf(file)
		if byKind[kind] == nil {
			kinds = append(kinds, kind)
		}
		byKind[kind] = append(byKind[kind], file)
	}
	sort.Strings(kinds)
	t.Logf("%d kinds of files: %v", len(kinds), kinds)
	random := rand.New(rand.NewPCG(*damageSeed, 0))
	ways := []string{"flip", "cut", "zero", "remove", "older"}
	counts := map[string]int{}
	for i := range *damages {
		kind := kinds[i%len(kinds)]
		r := ruin{byKind[kind][random.IntN(len(byKind[kind]))], ways[(i/len(kinds)+i)%len(ways)], random.Uint64()}
		if *damageOnly >= 0 && i != *damageOnly {
			continue
		}
		t.Run(fmt.Sprintf("%d %s", i, r), func(t *testing.T) {
			outcome := survive(t, whole, older, r, w)
			counts[outcome]++
			t.Log(outcome)
		})
	}
	t.Logf("%v", counts)
}

// damageWorks has a server do a little of everything, copies its data directory in the middle of it and kills it at the end.
func damageWorks(t *testing.T, whole, older string) works {
	t.Helper()
	s := newServerIn(t, whole, settings{"plugin": "fake"}, settings{"recovery": settings{"snapshot_operations": 3, "snapshot_every": "1s", "disk_share": 1}})
	s.start()
	s.ready()
	c := newCaller(t, s.url)
	w := works{results: map[string]string{}, checkpoints: map[string]string{}}
	note := func(o submitted) object {
		out, b, err := o.result()
		if err != nil {
			t.Fatal(err)
		}
		w.results[o.id] = answerText(out, b)
		return out
	}
	session := c.session()
	first, second := c.create(session, 0, 4), c.create(session, 1, 8)
	train := func(r *trainee, from, to int) {
		for i := from; i < to; i++ {
			note(r.pass(i, 2, 20))
			note(r.step(1e-3))
		}
	}
	train(first, 0, 3)
	train(second, 0, 2)
	saved := func(o submitted) {
		if out := note(o); out["path"] != nil {
			w.checkpoints[fmt.Sprint(out["path"])] = ""
		}
	}
	saved(first.save("one"))
	saved(first.saveForSampler("one", 0))
	note(first.pass(7, 6, 2000)) // its data are in a segment of the journal
	time.Sleep(1500 * time.Millisecond)
	copyTree(t, filepath.Join(whole, "data"), filepath.Join(older, "data"))
	train(first, 3, 6)
	saved(second.save("two"))
	saved(second.saveForSampler("two", 0))
	sampler := c.sampler(session, 0, "")
	for i := range 3 {
		note(c.sample(sampler, i, 8))
	}
	ended := c.session()
	train(c.create(ended, 0, 4), 0, 2)
	saved((&trainee{c, ended, ended + ":train:0", 4, 0}).save("left"))
	note(first.pass(9, 6, 2000))
	note(first.step(1e-3))
	time.Sleep(1500 * time.Millisecond) // what is due goes to the database, recovery points are written
	note(first.pass(8, 2, 20))          // and this is in the commit log alone
	w.run, w.seq = first.id, first.seq
	for path := range w.checkpoints {
		content, err := s.content(path)
		s.ok(err)
		w.checkpoints[path] = content
	}
	_ = s.process.Process.Signal(syscall.SIGKILL)
	<-s.ended
	awaitPlugins(t, filepath.Join(whole, "data"))
	// What an undamaged server answers to the next pass.
	control := t.TempDir()
	copyTree(t, filepath.Join(whole, "data"), filepath.Join(control, "data"))
	again := newServerIn(t, control, settings{"plugin": "fake"}, nil)
	if again.startOrRefuse() {
		t.Fatal("without any damage the server does not start")
	}
	if missing := again.differences(t, w); len(missing) > 0 {
		t.Fatalf("without any damage: %v", missing)
	}
	next, err := again.nextPass(w)
	again.ok(err)
	w.next = next
	again.end()
	return w
}

// nextPass is what the run that goes on answers next.
func (s *server) nextPass(w works) (string, error) {
	r := &trainee{newCaller(s.TB, s.url), "", w.run, w.seq, 0}
	_, b, err := r.pass(3, 2, 20).result()
	if err != nil {
		return "", err
	}
	return essence(s.TB, b), nil
}

func answerText(out object, b []byte) string {
	if out != nil {
		text, _ := json.Marshal(out) // of what was JSON
		return string(text)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// content says what is in a checkpoint: the digest of its archive, or of what a run that is made from it answers; an error is what a user would be told.
func (s *server) content(path string) (string, error) {
	run, id, _ := strings.Cut(strings.TrimPrefix(path, "tinker://"), "/")
	if strings.HasPrefix(id, "weights/") {
		c := newCaller(s.TB, s.url)
		session := c.session()
		answer, _, err := c.submit("/load_weights", object{"session_id": session, "model_seq_id": 0, "path": path, "optimizer": true, "type": "load_weights"}).result()
		if err != nil {
			return "", err
		}
		r := &trainee{c, session, fmt.Sprint(answer["model_id"]), 0, 0}
		_, b, err := r.pass(1, 2, 20).result()
		if err != nil {
			return "", err
		}
		return essence(s.TB, b), nil
	}
	link, err := http.Get(s.url + "/api/v1/training_runs/" + run + "/checkpoints/" + id + "/archive")
	if err != nil {
		return "", err
	}
	defer link.Body.Close()
	var where struct{ URL, Detail string }
	if err := json.NewDecoder(link.Body).Decode(&where); err != nil || where.URL == "" {
		return "", fmt.Errorf("archive: %s %s %w", link.Status, where.Detail, err)
	}
	archive, err := http.Get(where.URL)
	if err != nil {
		return "", err
	}
	defer archive.Body.Close()
	h := sha256.New()
	if _, err := io.Copy(h, archive.Body); err != nil || archive.StatusCode != http.StatusOK {
		return "", fmt.Errorf("archive: %s %w", archive.Status, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// difference is something that clients of before find changed.
type difference struct {
	what string
	told string // what they are told of it; "" = nothing, they get something else
}

func (d difference) String() string { return fmt.Sprintf("%s: %.300q", d.what, d.told) }

// differences lists them.
func (s *server) differences(t *testing.T, w works) []difference {
	t.Helper()
	var list []difference
	for path, want := range w.checkpoints {
		got, err := s.content(path)
		switch {
		case err != nil:
			list = append(list, difference{"checkpoint " + path, err.Error()})
		case got != want:
			list = append(list, difference{"checkpoint " + path, ""})
		}
	}
	for id, want := range w.results {
		body, err := json.Marshal(object{"request_id": id})
		s.ok(err)
		answer, err := post(http.DefaultClient, s.url+"/api/v1/retrieve_future", "application/json", body)
		s.ok(err)
		b, err := io.ReadAll(answer.Body)
		s.ok(err)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			list = append(list, difference{"result " + id, string(b)})
			continue
		}
		var out object
		if !strings.Contains(answer.Header.Get("Content-Type"), "protobuf") {
			s.ok(json.Unmarshal(b, &out))
		}
		if got := answerText(out, b); got != want {
			told, _ := out["error"].(string)
			list = append(list, difference{"result " + id, told})
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].what < list[j].what })
	return list
}

// survive does one damage to a copy and looks what comes of it.
func survive(t *testing.T, whole, older string, r ruin, w works) string {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	copyTree(t, filepath.Join(whole, "data"), data)
	if !r.do(t, data, filepath.Join(older, "data")) {
		return "nothing to be done"
	}
	before := checkpointFiles(t, data)
	s := newServerIn(t, dir, settings{"plugin": "fake"}, nil)
	refused := s.startOrRefuse()
	if refused {
		if !names(s.log(), r) {
			t.Errorf("the server refuses to start and does not say what is damaged:\n%s", lastOf(s.log(), 3000))
		}
	} else {
		missing := s.differences(t, w)
		if next, err := s.nextPass(w); err != nil {
			missing = append(missing, difference{"the next pass", err.Error()})
		} else if next != w.next {
			missing = append(missing, difference{"the next pass", ""})
		}
		named := names(s.log(), r)
		for _, d := range missing {
			if !named && d.told == "" {
				t.Errorf("something has changed, and nobody was told: %s\nthe log:\n%s", d, lastOf(s.log(), 3000))
			}
		}
		s.end()
		s.lost(t, before, data)
		if len(missing) == 0 {
			return "no effect"
		}
		return "named at work"
	}
	s.lost(t, before, data)
	// The damage was not to a checkpoint's files, which stop no server: so all of them come back. be brought back is brought back.
	recover := exec.Command(filepath.Join(s.programs, "tinsmith"), "recover", "--config", filepath.Join(dir, "tinsmith.yaml"), "--accept", "--claim", "all")
	recover.Env = append(os.Environ(), runVariable+"=1", countVariable+"="+filepath.Join(dir, "counts"))
	if out, err := recover.CombinedOutput(); err != nil {
		t.Fatalf("recover: %v\n%s", err, out)
	}
	if s.startOrRefuse() {
		t.Fatalf("after recover the server does not start:\n%s", lastOf(s.log(), 3000))
	}
	for path, want := range w.checkpoints {
		if got, err := s.content(path); err != nil || got != want {
			t.Errorf("recover has not brought back %s: %v", path, err)
		}
	}
	s.end()
	s.lost(t, before, data)
	return "refused, recovered"
}

// lost fails the test if files of checkpoints are gone.
func (s *server) lost(t *testing.T, before map[string]bool, data string) {
	t.Helper()
	after := checkpointFiles(t, data)
	for file := range before {
		if !after[file] {
			t.Errorf("a checkpoint's file is gone: %s", file)
		}
	}
}

// startOrRefuse starts the server and waits until it is ready, or has ended by itself, which is a refusal.
func (s *server) startOrRefuse() (refused bool) {
	s.url = ""
	_ = os.Remove(filepath.Join(s.dir, "data", "address"))
	s.ok(s.startAgain())
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if s.gone() {
			return true
		}
		if s.url == "" {
			if b, err := os.ReadFile(filepath.Join(s.dir, "data", "address")); err == nil {
				s.url = strings.TrimSpace(string(b))
			}
			continue
		}
		if status := s.healthz().Status; status == "ok" || status == "damaged" {
			return false
		}
	}
	s.Fatalf("neither ready nor ended:\n%s", lastOf(s.log(), 3000))
	return false
}

// names tells whether a log speaks of a damage: of the file, or of what it is.
func names(log string, r ruin) bool {
	words := []string{filepath.Base(r.file)}
	switch kind := kindOf(r.file); {
	case strings.HasPrefix(kind, "tinsmith.db"):
		words = append(words, "database", "tinsmith.db")
	case strings.HasPrefix(kind, "journal"):
		words = append(words, "journal")
	case strings.HasPrefix(kind, "checkpoints"), strings.HasPrefix(kind, "recovery"), strings.HasPrefix(kind, "snapshots"):
		words = append(words, filepath.Base(filepath.Dir(r.file)))
	case strings.HasSuffix(kind, ".log"), strings.HasSuffix(kind, ".spare"):
		words = append(words, "commit log")
	}
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(log, word) })
}

// do does the damage; false if the file does not allow it.
func (r ruin) do(t *testing.T, data, older string) bool {
	t.Helper()
	path := filepath.Join(data, r.file)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(r.seed, 0))
	// Where a file holds something: most of a recycled one may be empty.
	end := len(bytes.TrimRight(b, "\x00"))
	if end == 0 && r.how != "remove" && r.how != "older" {
		return false
	}
	switch r.how {
	case "flip":
		b[random.IntN(end)] ^= 1 << random.IntN(8)
	case "cut":
		b = b[:random.IntN(end)]
	case "zero":
		from := random.IntN(end)
		clear(b[from:min(len(b), from+512)])
	case "remove":
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return true
	case "older":
		if b, err = os.ReadFile(filepath.Join(older, r.file)); errors.Is(err, fs.ErrNotExist) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return true
}

// filesOf lists the files below a folder, but sockets and what the backend keeps for itself.
func filesOf(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err == nil && !strings.HasPrefix(rel, "backends") && rel != "address" && rel != "lock" {
			list = append(list, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// checkpointFiles are the files of checkpoints, wherever they lie, by name and content.
func checkpointFiles(t *testing.T, data string) map[string]bool {
	t.Helper()
	list := map[string]bool{}
	for _, file := range filesOf(t, data) {
		if parts := strings.Split(file, string(filepath.Separator)); parts[0] != "checkpoints" && parts[0] != "unclaimed" {
			continue
		}
		b, err := os.ReadFile(filepath.Join(data, file))
		if err != nil {
			t.Fatal(err)
		}
		// What a server may add or write anew are notes beside the weights.
		if strings.HasSuffix(file, ".safetensors") {
			list[fmt.Sprintf("%s %x", filepath.Base(file), sha256.Sum256(b))] = true
		}
	}
	return list
}

// copyTree copies a folder. Files that go meanwhile are left out.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", `mkdir -p "$2" && cp -a "$1/." "$2/" || test $? = 1`, "sh", from, to).CombinedOutput(); err != nil {
		t.Fatalf("copy: %v\n%s", err, out)
	}
}

// awaitPlugins waits until no process uses the data directory any more.
func awaitPlugins(t *testing.T, data string) {
	t.Helper()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		out, _ := exec.Command("sh", "-c", `ls -l /proc/[0-9]*/fd 2>/dev/null | grep -F "$1" | head -1`, "sh", data).Output()
		if len(out) == 0 {
			return
		}
	}
	t.Fatal("the backend's process does not end")
}
