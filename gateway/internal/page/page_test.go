package page

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
)

func served(t *testing.T) *httptest.Server {
	t.Helper()
	gin.SetMode(gin.TestMode)
	r := gin.New()
	Register(r)
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return s
}

func fetch(t *testing.T, method, url, tag string) *http.Response {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if tag != "" {
		q.Header.Set("If-None-Match", tag)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Body.Close() })
	return a
}

func TestFiles(t *testing.T) {
	s := served(t)
	for _, c := range []struct{ path, mediaType string }{
		{"/", "text/html; charset=utf-8"},
		{"/page/app.js", "text/javascript; charset=utf-8"},
		{"/page/views/run.js", "text/javascript; charset=utf-8"},
		{"/page/style.css", "text/css; charset=utf-8"},
		{"/page/icon.svg", "image/svg+xml"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			a := fetch(t, method, s.URL+c.path, "")
			if a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != c.mediaType || a.Header.Get("Content-Security-Policy") != policy || a.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%s %s: %d %v", method, c.path, a.StatusCode, a.Header)
			}
			if again := fetch(t, method, s.URL+c.path, a.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
				t.Errorf("%s %s with its tag: %d", method, c.path, again.StatusCode)
			}
		}
	}
	for _, missing := range []string{"/page/", "/page/none.js", "/page/../page.go", "/page/%2e%2e/page.go", "/page/views"} {
		if a := fetch(t, http.MethodGet, s.URL+missing, ""); a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", missing, a.StatusCode)
		}
	}
}

// What the policy forbids the files must not need, every file that one names must be there, and all of them together are small.
func TestAssets(t *testing.T) {
	files := load(assets)
	const most = 1 << 20
	total := 0
	imported := regexp.MustCompile(`(?:from|import) "(\.{1,2}/[^"]+)"`)
	linked := regexp.MustCompile(`(?:src|href)="(page/[^"]+)"`)
	inline := regexp.MustCompile(`(?i)<script(?:\s[^>]*)?>\s*[^<\s]|<style|\sstyle\s*=|\son\w+\s*=\s*"|javascript:`)
	unsafe := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://`)
	for name, f := range files {
		total += len(f.content)
		text := string(f.content)
		for _, m := range imported.FindAllStringSubmatch(text, -1) {
			if target := path.Join(path.Dir(name), m[1]); files[target].content == nil {
				t.Errorf("%s imports %s, which is not there", name, target)
			}
		}
		if strings.HasPrefix(name, "vendor/") || strings.HasSuffix(name, ".svg") {
			continue
		}
		for _, m := range linked.FindAllStringSubmatch(text, -1) {
			if _, there := files[strings.TrimPrefix(m[1], "page/")]; !there {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
		if strings.HasSuffix(name, ".html") && inline.MatchString(text) {
			t.Errorf("%s has code or style in its markup: %q", name, inline.FindString(text))
		}
		text = strings.ReplaceAll(text, `"http://www.w3.org/2000/svg"`, "") // the name of a language, which nobody fetches
		if strings.HasSuffix(name, ".js") && unsafe.MatchString(text) {
			t.Errorf("%s has %q: texts are never markup, and nothing comes from elsewhere", name, unsafe.FindString(text))
		}
	}
	if total > most {
		t.Errorf("the files have %d bytes, at most %d are allowed", total, most)
	}
}

// Files of others are as their authors published them.
func TestVendor(t *testing.T) {
	sums := map[string]string{
		"uPlot.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
		"uPlot.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"uPlot.js":      "5dd9b3281aa64b461b42d9945f6adb2649d346502b12281a9ae0d46599a80eba",
	}
	entries, err := fs.ReadDir(assets, "assets/vendor")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		content, err := fs.ReadFile(assets, "assets/vendor/"+e.Name())
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		if got := hex.EncodeToString(sum[:]); e.Name() != "README.md" && sums[e.Name()] != got {
			t.Errorf("%s: SHA-256 %s, expected %q", e.Name(), got, sums[e.Name()])
		}
	}
}
