package hub

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestToken: where it comes from, and that a redirection to another host does not take it along.
func TestToken(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HF_HOME", home)
	t.Setenv("HF_TOKEN_PATH", "")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(wanted string) {
		t.Helper()
		if got := token(); got != wanted {
			t.Errorf("the token is %q, expected %q", got, wanted)
		}
	}
	t.Setenv("HF_TOKEN", "")
	expect("")
	write(filepath.Join(home, "token"), "from-the-file\n")
	expect("from-the-file")
	other := filepath.Join(home, "other")
	write(other, " from-another ")
	t.Setenv("HF_TOKEN_PATH", other)
	expect("from-another")
	t.Setenv("HF_TOKEN", "from-the-environment")
	expect("from-the-environment")

	seen := map[string]string{}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen["elsewhere"] = r.Header.Get("Authorization")
		_, _ = io.WriteString(w, "content")
	}))
	defer elsewhere.Close()
	here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen[r.URL.Path] = r.Header.Get("Authorization")
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		case "/away":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		}
	}))
	defer here.Close()
	t.Setenv("HF_ENDPOINT", here.URL)
	for _, source := range []string{here.URL + "/moved", here.URL + "/away", elsewhere.URL} {
		res, err := get(context.Background(), source, 0)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	for where, got := range seen {
		if (got != "") != (where != "elsewhere") {
			t.Errorf("%s has seen %q", where, got)
		}
	}
	if len(seen) != 4 {
		t.Errorf("seen: %v", seen)
	}
	for _, endpoint := range []string{"ftp://a", "https://", "https://user:key@a", "https://a/?x=1", "\n"} {
		t.Setenv("HF_ENDPOINT", endpoint)
		if _, err := endpointOf(); err == nil {
			t.Errorf("HF_ENDPOINT %q is taken", endpoint)
		}
	}
}

func TestParseReference(t *testing.T) {
	for text, wanted := range map[string]Reference{
		"hf://org/m": {"org/m", ""}, "hf://org/m@main": {"org/m", "main"}, "hf://m@refs/pr/1": {"m", "refs/pr/1"},
		"org/m": {}, "hf://": {}, "hf://org/m@": {}, "hf://org/../m": {}, "hf://a/b/c": {}, "hf://org/m@../x": {}, "hf://org/m\n": {}, "hf://-/m": {}, "https://org/m": {},
	} {
		got, err := ParseReference(text)
		if got != wanted || (err == nil) != (wanted != Reference{}) {
			t.Errorf("%q: %+v, %v; expected %+v", text, got, err, wanted)
		}
	}
}
