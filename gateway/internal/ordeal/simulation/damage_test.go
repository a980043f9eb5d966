package simulation

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

var damages = flag.Int("damage", 0, "how many files TestDamage damages, one between a stop and a start each; 0 = it is skipped")

// damage is what happens to one file of a data directory while no gateway runs, and what was seen of it. All methods do nothing for nil.
type damage struct {
	kind  string
	named map[string]bool // folders of checkpoints

	mu          sync.Mutex
	file        string            // in the data directory; "" before
	checkpoints map[string]string // SHA-256 of the files of checkpoints but the damaged one → a name
	differences []string          // promises that did not hold after it
	unchanged   bool              // it had nothing that could be damaged
	said        []string          // warnings and errors in the log after it
}

// kinds of damage.
var kinds = []string{"one bit flipped", "512 bytes zeroed", "100 bytes cut off", "cut to nothing", "removed"}

// kindOf names a kind of file.
func kindOf(file string) string {
	switch {
	case strings.HasPrefix(file, "tinsmith.db"):
		return file
	case strings.Contains(file, "/"):
		return file[:strings.Index(file, "/")] + "/…/*" + filepath.Ext(file)
	}
	return file
}

// do damages a file of a data directory, once.
func (d *damage) do(w *world, dir string) {
	if d == nil || d.file != "" {
		return
	}
	files := filesOf(dir)
	byKind := map[string][]string{}
	for _, f := range slices.Sorted(maps.Keys(files)) {
		byKind[kindOf(f)] = append(byKind[kindOf(f)], f)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	kinds := slices.Sorted(maps.Keys(byKind))
	kind := kinds[w.random.IntN(len(kinds))]
	d.file = byKind[kind][w.random.IntN(len(byKind[kind]))]
	path := filepath.Join(dir, d.file)
	content := must(os.ReadFile(path))
	before := slices.Clone(content)
	at := 0
	if len(content) > 0 {
		at = w.random.IntN(len(content))
	}
	switch d.kind {
	case "one bit flipped":
		if len(content) > 0 {
			content[at] ^= 1 << w.random.IntN(8)
		}
	case "512 bytes zeroed":
		clear(content[at:min(at+512, len(content))])
	case "100 bytes cut off":
		content = content[:max(0, len(content)-100)]
	case "cut to nothing":
		content = nil
	}
	d.unchanged = d.kind != "removed" && slices.Equal(before, content)
	mustBe(os.Remove(path)) // another name of it may be in use
	if d.kind != "removed" {
		mustBe(os.WriteFile(path, content, 0o600))
	}
	w.note("%s: %s at %d", d.file, d.kind, at)
	d.checkpoints = map[string]string{}
	for f, sum := range files {
		if d.named[filepath.Dir(f)] && f != d.file {
			d.checkpoints[sum] = f
		}
	}
}

// filesOf gives the SHA-256 of every file of a folder.
func filesOf(dir string) map[string]string {
	files := map[string]string{}
	mustBe(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files[must(filepath.Rel(dir, path))] = fmt.Sprintf("%x", sha256.Sum256(must(os.ReadFile(path))))
		}
		return err
	}))
	return files
}

// difference takes a promise that did not hold after damage; false = nothing was damaged yet.
func (d *damage) difference(text string) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file == "" {
		return false
	}
	d.differences = append(d.differences, text)
	return true
}

// logged takes a line of the log.
func (d *damage) logged(level slog.Level, text string) {
	if d == nil || level < slog.LevelWarn || strings.HasPrefix(text, "a run is rebuilt") {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.file != "" {
		d.said = append(d.said, text)
	}
}

// damageOne has clients work, stops the gateway, damages a file, and starts it again. verdict is "refused", "named", "without effect" or, which is wrong, "NOT NAMED"; lost are the files of checkpoints that are gone.
func damageOne(t *testing.T, seed uint64, kind string) (file, verdict string, lost, seen []string) {
	cryptotest.SetGlobalRandom(t, seed)
	home := must(os.MkdirTemp(fast(), "tinsmith-simulation-"))
	defer os.RemoveAll(home)
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, home, noFault)
		w.plan = plan{parked: 0.2, clients: 1, operations: 6, lasting: true}
		w.clients = w.clients[:1]
		mustBe(os.Mkdir(fmt.Sprint(w.home, "/1"), 0o700))
		w.start(fmt.Sprint(w.home, "/1"))
		for _, c := range w.clients {
			go c.work()
		}
		w.live(w.clientsDone)
		d := &damage{kind: kind, named: map[string]bool{}}
		w.beside(func() {
			mustBe(w.server.all("checkpoints", func(rec store.Record) error {
				d.named[checkpointOf(rec).Dir] = true
				return nil
			}))
		})
		w.damage = d
		if seed%2 == 0 {
			w.stop()
		} else {
			w.crash(false)
		}
		for {
			w.settle()
			w.look()
			if w.up != nil && w.server != nil && w.server.number > 1 || d.refused() {
				break
			}
			w.letGo()
		}
		verdict = "without effect"
		switch {
		case d.refused():
			verdict = "refused"
		default:
			used := make(chan string, 1)
			go func() { used <- w.use(w.server, w.clients[0], d) }()
			for result := ""; result == "" || time.Since(w.calmed) < 10*time.Minute; { // long enough for what a start begins
				w.settle()
				w.look()
				w.letGo()
				select {
				case result = <-used:
					if result != "unused" {
						d.difference(result)
					}
				default:
				}
			}
			d.differences = slices.DeleteFunc(d.differences, func(s string) bool { return s == "well" })
			if len(d.said) > 0 || len(d.differences) > 0 && !slices.ContainsFunc(d.differences, func(s string) bool { return !namesDamage(s) }) {
				verdict = "named"
			} else if len(d.differences) > 0 {
				verdict = "NOT NAMED"
			}
		}
		left := map[string]bool{}
		for _, sum := range filesOf(w.server.dir) {
			left[sum] = true
		}
		for sum, name := range d.checkpoints {
			if !left[sum] {
				lost = append(lost, name)
			}
		}
		file, seen = d.file, append(d.differences, d.said...)
		w.damage = nil
		w.violated = append(w.violated, "the end") // ends what clients wait for
		w.end()
	})
	return file, verdict, lost, seen
}

// in tells whether the damaged file is in a folder: then that is named when it is used.
func (d *damage) in(dir string) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.file != "" && filepath.Dir(d.file) == dir
}

// use has the damaged checkpoint or snapshot used and says what came of it: what is damaged must be refused, unless nothing depends on it.
func (w *world) use(of *server, c *client, d *damage) string {
	ctx := context.Background()
	outcome := func(id string, err error) string {
		if err != nil {
			return "refused: " + err.Error()
		}
		out, err := of.core.Wait(ctx, c.owner, id, time.Hour)
		switch {
		case err != nil:
			return "no outcome: " + err.Error()
		case out.Failure != nil && out.Failure.Category == runs.CategoryServer:
			return "damaged, and said so: " + out.Failure.Message
		case out.Failure != nil:
			return "blamed on the user: " + out.Failure.Message
		case strings.HasSuffix(d.file, plugins.CompleteFile) || strings.HasSuffix(d.file, "tinsmith.json") || d.unchanged: // only recovery needs the second
			return "well"
		}
		return "used as if nothing were wrong"
	}
	session, err := of.core.CreateSession(ctx, runs.NewSession{Owner: c.owner})
	if err != nil {
		return "no session: " + err.Error()
	}
	var result string
	err = of.all("checkpoints", func(rec store.Record) error {
		cp := checkpointOf(rec)
		if result != "" || !d.in(cp.Dir) {
			return nil
		}
		if cp.Kind == runs.KindWeights {
			made, err := of.core.CreateRunFromCheckpoint(ctx, runs.NewRunFromCheckpoint{Owner: c.owner, SessionID: session.ID, ModelSeq: 900, Path: cp.Path, WithOptimizer: true})
			result = outcome(made.RequestID, err)
			return nil
		}
		smp, err := of.core.CreateSampler(ctx, runs.NewSampler{Owner: c.owner, SessionID: session.ID, Seq: 990_000, ModelPath: cp.Path})
		if err == nil {
			result = w.drawOnce(of, c, smp.ID, outcome)
		}
		return err
	})
	if err == nil && result == "" {
		err = of.all("samplers", func(rec store.Record) error {
			var smp struct {
				Dir string `json:"dir"`
			}
			mustBe(json.Unmarshal(rec.Value, &smp))
			if result == "" && d.in(smp.Dir) {
				result = w.drawOnce(of, c, rec.Key, outcome)
			}
			return nil
		})
	}
	if err != nil {
		return "refused: " + err.Error()
	}
	return cmp.Or(result, "unused")
}

func (w *world) drawOnce(of *server, c *client, sampler string, outcome func(string, error) string) string {
	one := 1
	sent, err := of.core.Sample(context.Background(), runs.Sample{Owner: c.owner, SamplerID: sampler, Seq: 77_777, Prompt: []int32{1, 2}, NumSamples: 1, Params: runs.SamplingParams{
		MaxTokens: &one, Temperature: 1, TopP: 1, Stops: runs.Stops{Given: true},
	}})
	return outcome(sent.RequestID, err)
}

// refused tells whether the gateway did not start.
func (d *damage) refused() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.differences, func(s string) bool { return strings.Contains(s, "does not start") })
}

// namesDamage tells whether an error says that something is damaged.
func namesDamage(text string) bool {
	return slices.ContainsFunc([]string{"damaged", "corrupt", "checksum", "malformed", "not a database"}, func(word string) bool { return strings.Contains(text, word) })
}

// After damage to a file the gateway names it, or all is as before; and no checkpoint's file is gone.
func TestDamage(t *testing.T) {
	if *damages == 0 {
		t.Skip("takes as long as one wants: -damage 500")
	}
	table := map[string]map[string]int{}
	for i := range uint64(*damages) {
		kind := kinds[i%uint64(len(kinds))]
		file, verdict, lost, seen := damageOne(t, *seed+i, kind)
		of := kindOf(file)
		if table[of] == nil {
			table[of] = map[string]int{}
		}
		table[of][verdict]++
		if verdict == "NOT NAMED" {
			t.Errorf("seed %d: %s, %s: nothing names it, and it has an effect: %s", *seed+i, file, kind, seen)
		}
		if len(lost) > 0 {
			table[of]["checkpoints lost"]++
			t.Errorf("seed %d: %s, %s (%s): %d files of checkpoints are gone, such as %s", *seed+i, file, kind, verdict, len(lost), lost[0])
		}
	}
	for _, of := range slices.Sorted(maps.Keys(table)) {
		t.Logf("%-32s %v", of, table[of])
	}
}
