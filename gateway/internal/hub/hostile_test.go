package hub

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestHostileHub: what a hub says of an upload is checked.
func TestHostileHub(t *testing.T) {
	for _, c := range []struct{ name, batch, wants string }{
		{"parts of nothing", `{"href":"http://a/b","header":{"chunk_size":"0"}}`, "parts of"},
		{"parts of text", `{"href":"http://a/b","header":{"chunk_size":"x"}}`, "parts of"},
		{"parts of a list", `{"href":"http://a/b","header":{"chunk_size":[1]}}`, "parts of"},
		{"too many parts", `{"href":"http://a/b","header":{"chunk_size":1}}`, "more than 10000"},
		{"too few parts", `{"href":"http://a/b","header":{"chunk_size":"8000","1":"http://a/1"}}`, "address"},
		{"parts that are none", `{"href":"http://a/b","header":{"chunk_size":"16000","2":"http://a/1"}}`, "address"},
		{"more parts", `{"href":"http://a/b","header":{"chunk_size":"16000","1":"http://a/1","2":"http://a/2"}}`, "2 parts of 1"},
		{"an address that is none", `{"href":"file:///etc/passwd"}`, "address"},
		{"an address with a user", `{"href":"http://u:p@a/"}`, "address"},
		{"no address", `{}`, "address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newPushHub(t)
			serve := h.hub.Config.Handler
			h.hub.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/batch") {
					fmt.Fprintf(w, `{"objects":[{"oid":"%x","size":16000,"actions":{"upload":%s}}]}`, sha256.Sum256([]byte(weights)), c.batch)
					return
				}
				serve.ServeHTTP(w, r)
			})
			_, err := Push(t.Context(), Upload{Repository: "org/m", Dir: folder(t, adapter())}, nil)
			if err == nil || !strings.Contains(err.Error(), c.wants) {
				t.Errorf("got %v, expected %q", err, c.wants)
			}
		})
	}
	for _, c := range []struct{ name, path, body string }{
		{"no list", "revision/main", `[]`},
		{"a commit that is none", "revision/main", `{"sha":"../x"}`},
		{"modes that nobody knows", "preupload/main", `{"files":[{"path":"README.md","uploadMode":"xet"}]}`},
		{"no modes", "preupload/main", `{}`},
		{"no objects", "objects/batch", `{}`},
		{"an object that is refused", "objects/batch", fmt.Sprintf(`{"objects":[{"oid":"%x","error":{"code":422,"message":"too large"}}]}`, sha256.Sum256([]byte(weights)))},
		{"a transfer that nobody knows", "objects/batch", `{"transfer":"xet","objects":[]}`},
		{"no name of the commit", "commit/main", `{}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newPushHub(t)
			serve := h.hub.Config.Handler
			h.hub.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, c.path) {
					_, _ = io.WriteString(w, c.body)
					return
				}
				serve.ServeHTTP(w, r)
			})
			if _, err := Push(t.Context(), Upload{Repository: "org/m", Dir: folder(t, adapter())}, nil); err == nil || h.commits > 0 {
				t.Errorf("it succeeded: %v", err)
			}
		})
	}
}

// FuzzAction: whatever a hub answers about an upload, the addresses are as many as the parts, and ones that may be asked.
func FuzzAction(f *testing.F) {
	for _, seed := range []string{
		`{"href":"https://a/b"}`, `{"href":"https://a/b","header":{"chunk_size":"10","1":"https://a/1","2":"https://a/2"}}`, `{"href":"","header":{"chunk_size":1e300}}`, `{"header":{"chunk_size":-1,"1":1}}`,
		`{"header":{"chunk_size":"15","1":"file:///x","01":"https://a/1"}}`,
	} {
		f.Add(seed, int64(20))
	}
	f.Fuzz(func(t *testing.T, text string, size int64) {
		var a action
		if json.Unmarshal([]byte(text), &a) != nil || size < 1 {
			return
		}
		p := &upload{endpoint: "https://hub"}
		part, addresses, err := p.parts(&localFile{size: size}, a.Header)
		if err != nil || addresses == nil {
			return
		}
		if part < 1 || int64(len(addresses)) != (size-1)/part+1 || len(addresses) > maxParts {
			t.Errorf("%d parts of %d bytes for %d", len(addresses), part, size)
		}
		for _, address := range addresses {
			if !strings.HasPrefix(address, "https://") {
				t.Errorf("an address is %q", address)
			}
		}
	})
}
