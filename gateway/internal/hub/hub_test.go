package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// fakeHub serves one repository, org/m, as the hub does.
type fakeHub struct {
	files    map[string][]byte
	corrupt  string         // this file is sent with another last byte
	cutAfter map[string]int // the connection ends after that many bytes of a file, once
	noRanges bool
	token    string
	ranges   []string // Range headers seen
	gets     int
}

func (h *fakeHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.token != "" && r.Header.Get("Authorization") != "Bearer "+h.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/api/models/org/m/revision/main" {
		var siblings []map[string]any
		for name, data := range h.files {
			entry := map[string]any{"rfilename": name, "size": len(data), "blobId": fmt.Sprintf("%x", sha1.Sum(append([]byte(fmt.Sprintf("blob %d\x00", len(data))), data...)))}
			if strings.HasSuffix(name, ".safetensors") {
				entry["lfs"] = map[string]any{"sha256": fmt.Sprintf("%x", sha256.Sum256(data)), "size": len(data)}
			}
			siblings = append(siblings, entry)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": siblings})
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/org/m/resolve/"+commit+"/")
	data, known := h.files[name]
	if !ok || !known {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	h.gets++
	data = append([]byte{}, data...)
	if name == h.corrupt {
		data[len(data)-1] ^= 1
	}
	from := 0
	if header := r.Header.Get("Range"); header != "" {
		h.ranges = append(h.ranges, header)
		if !h.noRanges {
			_, _ = fmt.Sscanf(header, "bytes=%d-", &from)
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
			w.WriteHeader(http.StatusPartialContent)
		}
	}
	if cut, ok := h.cutAfter[name]; ok {
		delete(h.cutAfter, name)
		_, _ = w.Write(data[from:cut])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(data[from:])
}

func newHub() *fakeHub {
	return &fakeHub{cutAfter: map[string]int{}, files: map[string][]byte{
		"config.json": []byte(`{"a":1}`), "model.safetensors": []byte(strings.Repeat("weights ", 1000)), "tokenizer.json": []byte("{}"), "pytorch_model.bin": []byte("no"), "original/x.safetensors": []byte("no"),
	}}
}

func start(t *testing.T, h *fakeHub) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("HF_ENDPOINT", s.URL)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_TOKEN", "")
}

func TestDownload(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*fakeHub)
		want string // of the error
	}{
		{"plain", func(*fakeHub) {}, ""},
		{"broken connection is continued", func(h *fakeHub) { h.cutAfter["model.safetensors"] = 3000 }, ""},
		{"a server that does not continue", func(h *fakeHub) { h.cutAfter["model.safetensors"] = 3000; h.noRanges = true }, ""},
		{"no weights", func(h *fakeHub) { delete(h.files, "model.safetensors") }, "no safetensors files"},
		{"gated", func(h *fakeHub) { h.token = "secret" }, "set HF_TOKEN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHub()
			c.set(h)
			start(t, h)
			var last, total int64
			dir, err := Resolve(context.Background(), "hf://org/m", func(d, n int64) {
				if d < last && !h.noRanges {
					t.Errorf("progress fell from %d to %d", last, d)
				}
				last, total = d, n
			})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if last != total || total != int64(len(h.files["config.json"])+len(h.files["model.safetensors"])+2) {
				t.Errorf("progress ended at %d of %d", last, total)
			}
			for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json"} {
				if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(h.files[name]) {
					t.Errorf("%s: %d bytes, %v", name, len(got), err)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, "pytorch_model.bin")); err == nil {
				t.Error("a file that is not read was downloaded")
			}
			// By its plain name it is found in the cache now; a second download fetches nothing.
			if again, err := Resolve(context.Background(), "org/m", nil); err != nil || again != dir {
				t.Errorf("from the cache: %q, %v", again, err)
			}
			gets := h.gets
			if _, err := Resolve(context.Background(), "hf://org/m", nil); err != nil || h.gets != gets {
				t.Errorf("a second download made %d requests, %v", h.gets-gets, err)
			}
			if c.name == "broken connection is continued" && (len(h.ranges) != 1 || h.ranges[0] != "bytes=3000-") {
				t.Errorf("ranges %q", h.ranges)
			}
		})
	}
}

func TestTokenIsSent(t *testing.T) {
	h := newHub()
	h.token = "secret"
	start(t, h)
	t.Setenv("HF_TOKEN", "secret")
	if _, err := Resolve(context.Background(), "hf://org/m", nil); err != nil {
		t.Fatal(err)
	}
}

func TestOfflineAfterDownload(t *testing.T) {
	start(t, newHub())
	dir, err := Resolve(context.Background(), "hf://org/m", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	for _, path := range []string{"hf://org/m", "hf://org/m@" + commit} {
		if got, err := Resolve(context.Background(), path, nil); err != nil || got != dir {
			t.Errorf("%s without a hub: %q, %v", path, got, err)
		}
	}
}

func TestCorruptFileNeverAppears(t *testing.T) {
	h := newHub()
	h.corrupt = "tokenizer.json"
	start(t, h)
	blob := filepath.Join(t.TempDir(), "blob")
	_, err := fetchOnce(context.Background(), os.Getenv("HF_ENDPOINT")+"/org/m/resolve/"+commit+"/tokenizer.json", blob, file{Name: "tokenizer.json", Size: 2, BlobID: strings.Repeat("0", 40)}, func(int64) {})
	if err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(blob); err == nil {
		t.Error("the corrupt file has its final name")
	}
}

func TestRefusedPaths(t *testing.T) {
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_CACHE", "")
	for _, c := range []struct{ path, want string }{
		{"hf://../../etc", "is not hf://org/name"},
		{"hf://org/m@../x", "is not hf://org/name"},
		{"hf://a/b/c", "is not hf://org/name"},
		{"org/absent", "neither a directory nor a model in the Hugging Face cache"},
		{"../absent", "file does not exist"},
	} {
		if _, err := Resolve(context.Background(), c.path, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.path, err, c.want)
		}
	}
}

// TestFind: nothing is downloaded, and what cannot be is refused.
func TestFind(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	cache, dir := t.TempDir(), t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	snapshot := filepath.Join(cache, "models--org--there", "snapshots", commit)
	for path, content := range map[string]string{
		filepath.Join(snapshot, "config.json"):                        "{}",
		filepath.Join(cache, "models--org--there", "refs", "main"):    commit,
		filepath.Join(cache, "models--org--there", "refs", "ignored"): "no commit",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path, want string
		refused    bool
	}{
		{dir, dir, false},
		{"org/there", snapshot, false},
		{"hf://org/there", snapshot, false},
		{"hf://org/there@" + commit, snapshot, false},
		{"hf://org/there@other", "", false},
		{"hf://org/elsewhere", "", false},
		{"org/elsewhere", "", true},
		{filepath.Join(dir, "none"), "", true},
		{"hf://", "", true},
		{"hf://org/there@../x", "", true},
	} {
		if got, err := Find(t.Context(), c.path); got != c.want || (err != nil) != c.refused {
			t.Errorf("%s: %q, %v; want %q", c.path, got, err, c.want)
		}
	}
}

// A machine without the weights downloads what else is in a repository; it serves without the hub, and is no whole model.
func TestDownloadWithoutWeights(t *testing.T) {
	h := newHub()
	start(t, h)
	ctx := context.Background()
	dir, err := ResolveWithoutWeights(ctx, "hf://org/m", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"config.json": true, "tokenizer.json": true, "model.safetensors": false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	endpoint := os.Getenv("HF_ENDPOINT")
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	if again, err := ResolveWithoutWeights(ctx, "hf://org/m@"+commit, nil); err != nil || again != dir {
		t.Errorf("without the hub: %s, %v", again, err)
	}
	if _, err := Resolve(ctx, "hf://org/m@"+commit, nil); err == nil {
		t.Error("what has no weights was taken for a whole model")
	}
	t.Setenv("HF_ENDPOINT", endpoint)
	if _, err := Resolve(ctx, "hf://org/m", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "model.safetensors")); err != nil {
		t.Error(err)
	}
	// The whole model serves who needs less.
	h.gets = 0
	if _, err := ResolveWithoutWeights(ctx, "hf://org/m@"+commit, nil); err != nil || h.gets > 0 {
		t.Errorf("%d files were asked for again, %v", h.gets, err)
	}
}
