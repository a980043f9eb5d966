package hub

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// pushHub takes one repository, org/m, as the hub does, and keeps large files at another address, its storage, which must never see the token.
type pushHub struct {
	t            *testing.T
	hub, storage *httptest.Server

	mu       sync.Mutex
	there    bool // the repository
	private  bool
	ignores  string
	files    map[string][]byte // of the newest commit
	large    map[string]bool   // of those by LFS
	commits  int
	objects  map[string][]byte // finished large files by SHA-256
	parts    map[string][]byte // by path
	partSize int               // 0: as a whole
	faults   map[string][]int  // statuses for the next requests whose path has this in it; 0 cuts the connection, -1 does the work and cuts then
	asked    []string          // method and path
	sent     int               // bytes of large files that arrived
}

func newPushHub(t *testing.T) *pushHub {
	h := &pushHub{t: t, files: map[string][]byte{}, large: map[string]bool{}, objects: map[string][]byte{}, parts: map[string][]byte{}, faults: map[string][]int{}}
	h.hub, h.storage = httptest.NewServer(http.HandlerFunc(h.serveHub)), httptest.NewServer(http.HandlerFunc(h.serveStorage))
	t.Cleanup(h.hub.Close)
	t.Cleanup(h.storage.Close)
	t.Setenv("HF_ENDPOINT", h.hub.URL)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_TOKEN", "secret")
	t.Setenv("HF_TOKEN_PATH", "")
	before := firstPause
	firstPause = time.Millisecond
	t.Cleanup(func() { firstPause = before })
	return h
}

// fails answers with the next fault for a path. after is set where the work is to be done first.
func (h *pushHub) fails(w http.ResponseWriter, r *http.Request) (failed, after bool) {
	h.mu.Lock()
	h.asked = append(h.asked, r.Method+" "+r.URL.Path)
	fault, found := 0, false
	for part, faults := range h.faults {
		if strings.Contains(r.URL.Path, part) && len(faults) > 0 {
			fault, found = faults[0], true
			h.faults[part] = faults[1:]
		}
	}
	h.mu.Unlock()
	switch {
	case !found:
		return false, false
	case fault == 0:
		panic(http.ErrAbortHandler)
	case fault < 0:
		return false, true
	}
	w.Header().Set("Retry-After", "0")
	w.WriteHeader(fault)
	_, _ = io.WriteString(w, `{"error":"as the test wants"}`)
	return true, false
}

func (h *pushHub) serveStorage(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		h.t.Errorf("the token went to the storage: %s", r.URL)
	}
	if failed, _ := h.fails(w, r); failed {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent += len(body)
	_, oid, _ := strings.Cut(r.URL.Path, "/whole/")
	if oid != "" {
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != oid {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		h.objects[oid] = body
		return
	}
	h.parts[r.URL.Path] = body
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(body)))
}

func (h *pushHub) serveHub(w http.ResponseWriter, r *http.Request) {
	put := strings.HasPrefix(r.URL.Path, "/complete/") // its address is the permission
	if got := r.Header.Get("Authorization"); put == (got != "") || !put && got != "Bearer secret" {
		h.t.Errorf("%s %s: token %q", r.Method, r.URL.Path, got)
	}
	failed, after := h.fails(w, r)
	if failed {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	answer, status := h.answer(r, body)
	if after {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (h *pushHub) sha() string { return fmt.Sprintf("%040x", h.commits) }

// answer does what a request asks. mu is held.
func (h *pushHub) answer(r *http.Request, body []byte) (any, int) {
	type m = map[string]any
	decode := func(into any) {
		if err := json.Unmarshal(body, into); err != nil {
			h.t.Errorf("%s: %v", r.URL.Path, err)
		}
	}
	switch path := r.URL.Path; {
	case path == "/api/validate-yaml":
		var q struct{ Content, RepoType string }
		decode(&q)
		if q.RepoType != "model" || strings.Contains(q.Content, "broken: [") {
			return m{"errors": []m{{"message": "no YAML"}}}, 400
		}
		return m{"errors": []m{}, "warnings": []m{}}, 200
	case path == "/api/repos/create":
		var q struct{ Name, Organization, Type, Visibility string }
		decode(&q)
		if q.Name != "m" || q.Organization != "org" || q.Type != "model" {
			h.t.Errorf("create %+v", q)
		}
		if h.there {
			return m{"error": "You already created this model repo"}, 409
		}
		h.there, h.private = true, q.Visibility == "private"
		return m{"url": h.hub.URL + "/org/m"}, 200
	case !h.there:
		return m{"error": "Repository not found"}, 404
	case path == "/api/models/org/m/revision/main":
		var siblings []m
		for name, content := range h.files {
			f := m{"rfilename": name, "size": len(content), "blobId": gitSum(content)}
			if h.large[name] {
				f["blobId"], f["lfs"] = strings.Repeat("0", 40), m{"sha256": fmt.Sprintf("%x", sha256.Sum256(content)), "size": len(content)}
			}
			siblings = append(siblings, f)
		}
		return m{"sha": h.sha(), "private": h.private, "siblings": siblings}, 200
	case path == "/api/models/org/m/preupload/main":
		var q struct {
			Files []struct {
				Path   string
				Sample []byte
				Size   int64
			}
		}
		decode(&q)
		var out []m
		for _, f := range q.Files {
			if int64(len(f.Sample)) != min(f.Size, 512) {
				h.t.Errorf("%s of %d bytes: a sample of %d", f.Path, f.Size, len(f.Sample))
			}
			mode := "regular"
			if strings.HasSuffix(f.Path, ".safetensors") {
				mode = "lfs"
			}
			out = append(out, m{"path": f.Path, "uploadMode": mode, "shouldIgnore": f.Path == h.ignores})
		}
		return m{"files": out}, 200
	case path == "/org/m.git/info/lfs/objects/batch":
		var q struct {
			Operation string
			Transfers []string
			Algorithm string `json:"hash_algo"`
			Objects   []struct {
				OID  string
				Size int
			}
		}
		decode(&q)
		if q.Operation != "upload" || q.Algorithm != "sha256" || !slices.Contains(q.Transfers, "multipart") || r.Header.Get("Accept") != lfsType {
			h.t.Errorf("batch %+v", q)
		}
		var out []m
		for _, o := range q.Objects {
			entry := m{"oid": o.OID, "size": o.Size}
			switch {
			case h.objects[o.OID] != nil:
			case h.partSize == 0:
				entry["actions"] = m{"upload": m{"href": h.storage.URL + "/whole/" + o.OID}, "verify": m{"href": h.hub.URL + "/verify/" + o.OID}}
			default:
				header := m{"chunk_size": strconv.Itoa(h.partSize)}
				for n := range (o.Size-1)/h.partSize + 1 {
					header[strconv.Itoa(n+1)] = fmt.Sprintf("%s/part/%s/%d", h.storage.URL, o.OID, n+1)
				}
				entry["actions"] = m{"upload": m{"href": h.hub.URL + "/complete/" + o.OID, "header": header}}
			}
			out = append(out, entry)
		}
		return m{"transfer": "basic", "objects": out}, 200
	case strings.HasPrefix(path, "/complete/"):
		var q struct {
			OID   string
			Parts []struct {
				PartNumber int
				ETag       string
			}
		}
		decode(&q)
		var whole []byte
		for i, part := range q.Parts {
			content := h.parts[fmt.Sprintf("/part/%s/%d", q.OID, i+1)]
			if part.PartNumber != i+1 || part.ETag != fmt.Sprintf(`"%x"`, sha256.Sum256(content)) {
				h.t.Errorf("part %d is called %+v", i+1, part)
			}
			whole = append(whole, content...)
		}
		if sum := sha256.Sum256(whole); hex.EncodeToString(sum[:]) != q.OID {
			return m{"error": "it is not whole"}, 422
		}
		h.objects[q.OID] = whole
		return m{}, 200
	case strings.HasPrefix(path, "/verify/"):
		if h.objects[strings.TrimPrefix(path, "/verify/")] == nil {
			return m{}, 404
		}
		return m{}, 200
	case strings.HasPrefix(path, "/org/m/resolve/"):
		return nil, 404
	case path == "/api/models/org/m/commit/main":
		return h.commit(r, body)
	}
	return m{"error": "not here"}, 404
}

func (h *pushHub) commit(r *http.Request, body []byte) (any, int) {
	if r.Header.Get("Content-Type") != "application/x-ndjson" {
		h.t.Errorf("a commit of type %q", r.Header.Get("Content-Type"))
	}
	files, large := maps.Clone(h.files), maps.Clone(h.large)
	for i, line := range bytes.Split(bytes.TrimSuffix(body, []byte("\n")), []byte("\n")) {
		var op struct {
			Key   string
			Value struct {
				Summary, ParentCommit, Path, Content, Encoding, Algo, OID string
				Size                                                      int
			}
		}
		if err := json.Unmarshal(line, &op); err != nil || (i == 0) != (op.Key == "header") {
			h.t.Errorf("line %d of a commit: %s: %v", i, line, err)
		}
		switch v := op.Value; op.Key {
		case "header":
			if v.ParentCommit != h.sha() {
				return map[string]string{"error": "the parent has moved"}, 412
			}
		case "file":
			content, err := base64.StdEncoding.DecodeString(v.Content)
			if err != nil || v.Encoding != "base64" {
				h.t.Errorf("%s: %v", v.Path, err)
			}
			files[v.Path], large[v.Path] = content, false
		case "lfsFile":
			if len(h.objects[v.OID]) != v.Size || v.Algo != "sha256" || v.Size == 0 {
				h.t.Errorf("%s was committed before it was there", v.Path)
			}
			files[v.Path], large[v.Path] = h.objects[v.OID], true
		case "deletedFile":
			delete(files, v.Path)
		}
	}
	h.files, h.large = files, large
	h.commits++
	return map[string]string{"commitUrl": h.hub.URL + "/org/m/commit/" + h.sha(), "commitOid": h.sha()}, 200
}

func gitSum(content []byte) string {
	f := &file{Size: int64(len(content))}
	sum := f.newHash()
	_, _ = sum.Write(content)
	return hex.EncodeToString(sum.Sum(nil))
}

// folder writes files for a push.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

var weights = strings.Repeat("all the weights ", 1000)

func adapter() map[string]string {
	return map[string]string{"adapter_config.json": `{"r":8}`, "adapter_model.safetensors": weights, "README.md": "---\n---\nours", "empty.safetensors": ""}
}

func isModel(name string) bool {
	return name == "config.json" || strings.HasSuffix(name, ".safetensors")
}

func TestPush(t *testing.T) {
	for _, c := range []struct {
		name  string
		set   func(*pushHub, *Upload)
		wants string // of the error
	}{
		{"as a whole", func(*pushHub, *Upload) {}, ""},
		{"in parts", func(h *pushHub, _ *Upload) { h.partSize = 1000 }, ""},
		{"in parts that fit", func(h *pushHub, _ *Upload) { h.partSize = 4000 }, ""},
		{"in one part", func(h *pushHub, _ *Upload) { h.partSize = 1 << 20 }, ""},
		{"private", func(_ *pushHub, u *Upload) { u.Private = true }, ""},
		{"the repository is there", func(h *pushHub, _ *Upload) { h.there = true }, ""},
		{"a token that makes no repositories", func(h *pushHub, _ *Upload) { h.there = true; h.faults["repos/create"] = []int{403} }, ""},
		{"a hub that looks at no cards", func(h *pushHub, _ *Upload) { h.faults["validate-yaml"] = []int{404} }, ""},
		{"a storage that fails", func(h *pushHub, _ *Upload) { h.faults["/whole/"] = []int{500, 0, 503} }, ""},
		{"an address that has expired", func(h *pushHub, _ *Upload) { h.faults["/whole/"] = []int{403} }, ""},
		{"parts that fail", func(h *pushHub, _ *Upload) { h.partSize = 1000; h.faults["/part/"] = []int{500, 0, 429, 0} }, ""},
		{"parts whose addresses have expired", func(h *pushHub, _ *Upload) { h.partSize = 8000; h.faults["/part/"] = []int{403} }, ""},
		{"a hub that fails", func(h *pushHub, _ *Upload) {
			for _, part := range []string{"repos/create", "revision", "preupload", "batch", "commit/", "verify"} {
				h.faults[part] = []int{502, 0}
			}
		}, ""},
		{"a commit whose answer is lost", func(h *pushHub, _ *Upload) { h.faults["commit/"] = []int{-1} }, ""},
		{"a hub that is away", func(h *pushHub, _ *Upload) { h.faults["preupload"] = []int{503, 503, 503, 503, 503} }, "503"},
		{"private, and it is not", func(h *pushHub, u *Upload) { h.there = true; u.Private = true }, "is not private"},
		{"a token that may not write", func(h *pushHub, _ *Upload) { h.faults["repos/create"] = []int{403} }, "make the repository"},
		{"a card that the hub does not take", func(_ *pushHub, u *Upload) {
			if err := os.WriteFile(filepath.Join(u.Dir, "README.md"), []byte("---\nbroken: [\n---"), 0o600); err != nil {
				panic(err)
			}
		}, "no YAML"},
		{"a file that is ignored", func(h *pushHub, _ *Upload) { h.ignores = "adapter_config.json" }, ".gitignore"},
		{"somebody else commits", func(h *pushHub, _ *Upload) { h.faults["commit/"] = []int{412} }, "push again"},
		{"a model in the way", func(h *pushHub, _ *Upload) { h.there = true; h.files["config.json"] = []byte("{}") }, "--replace"},
		{"a model that is replaced", func(h *pushHub, u *Upload) { h.there = true; h.files["config.json"] = []byte("{}"); u.Replace = true }, ""},
		{"a folder in it", func(_ *pushHub, u *Upload) { _ = os.Mkdir(filepath.Join(u.Dir, "x"), 0o700) }, "not a regular file"},
		{"a name that is none", func(_ *pushHub, u *Upload) { _ = os.WriteFile(filepath.Join(u.Dir, "a\nb"), nil, 0o600) }, "cannot be the name"},
		{"a repository without a name", func(_ *pushHub, u *Upload) { u.Repository = "org/../x" }, "is not org/name"},
		{"no token", func(*pushHub, *Upload) { _ = os.Unsetenv("HF_TOKEN") }, "set HF_TOKEN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newPushHub(t)
			u := Upload{Repository: "org/m", Dir: folder(t, adapter()), Summary: "a test", Displaced: isModel, CardMark: "ours"}
			c.set(h, &u)
			var last, total int64
			got, err := Push(t.Context(), u, func(done, of int64) { last, total = done, of })
			if c.wants != "" {
				if err == nil || !strings.Contains(err.Error(), c.wants) {
					t.Fatalf("got %v, expected %q", err, c.wants)
				}
				if h.commits > 0 || strings.Contains(err.Error(), "secret") {
					t.Errorf("%d commits: %v", h.commits, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.commits != 1 || got.Commit != h.sha() || h.private != u.Private || got.Same {
				t.Errorf("%d commits, %+v, private %v", h.commits, got, h.private)
			}
			for name, content := range adapter() {
				if string(h.files[name]) != content {
					t.Errorf("%s has arrived as %.40q", name, h.files[name])
				}
			}
			if len(h.files) != len(adapter()) || h.large["empty.safetensors"] || !h.large["adapter_model.safetensors"] {
				t.Errorf("it has %d files, by LFS %v", len(h.files), h.large)
			}
			if last != total || total == 0 {
				t.Errorf("progress ends with %d of %d", last, total)
			}
			// Again: nothing is sent, nothing is committed.
			sent := h.sent
			if got, err = Push(t.Context(), Upload{Repository: "org/m", Dir: u.Dir, Displaced: isModel, Replace: true}, nil); err != nil || !got.Same || h.commits != 1 || h.sent != sent {
				t.Errorf("a second time: %+v, %v, %d commits", got, err, h.commits)
			}
		})
	}
}

// TestPushGoesOn: what has arrived of a push that was cut off is not sent again.
func TestPushGoesOn(t *testing.T) {
	h := newPushHub(t)
	u := Upload{Repository: "org/m", Dir: folder(t, adapter()), CardMark: "ours"}
	h.faults["commit/"] = []int{400}
	if _, err := Push(t.Context(), u, nil); err == nil {
		t.Fatal("it succeeded")
	}
	if _, err := Push(t.Context(), u, nil); err != nil {
		t.Fatal(err)
	}
	if h.sent != len(weights) {
		t.Errorf("%d bytes were sent of %d", h.sent, len(weights))
	}
}

// TestPushKeepsCard: a card that somebody has written stays.
func TestPushKeepsCard(t *testing.T) {
	h := newPushHub(t)
	h.there, h.files["README.md"] = true, []byte("mine")
	serve := h.hub.Config.Handler
	h.hub.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/README.md") {
			h.mu.Lock()
			defer h.mu.Unlock()
			_, _ = w.Write(h.files["README.md"])
			return
		}
		serve.ServeHTTP(w, r)
	})
	u := Upload{Repository: "org/m", Dir: folder(t, adapter()), CardMark: "ours"}
	got, err := Push(t.Context(), u, nil)
	if err != nil || !got.KeptCard || string(h.files["README.md"]) != "mine" || h.files["adapter_config.json"] == nil {
		t.Fatalf("%+v, %v: %q", got, err, h.files["README.md"])
	}
	u.Replace = true
	if got, err = Push(t.Context(), u, nil); err != nil || got.KeptCard || string(h.files["README.md"]) != adapter()["README.md"] {
		t.Fatalf("%+v, %v: %q", got, err, h.files["README.md"])
	}
	u.Replace = false
	if err := os.WriteFile(filepath.Join(u.Dir, "README.md"), []byte("ours, newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err = Push(t.Context(), u, nil); err != nil || got.KeptCard || string(h.files["README.md"]) != "ours, newer" {
		t.Fatalf("%+v, %v: %q", got, err, h.files["README.md"])
	}
}
