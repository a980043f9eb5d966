package keys

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authenticator has a ring with two keys of ann, one of bob and an administrator's.
func authenticator(t testing.TB) (a *Authenticator, ann, second, bob, root string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	var made [3]string
	for i, name := range []string{"ann", "ann", "bob"} {
		key, err := Add(path, name)
		if err != nil {
			t.Fatal(err)
		}
		made[i] = key
	}
	root, err := AddAdmin(path, "root")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return &Authenticator{Ring: ring, Tokens: Tokens{[]byte(strings.Repeat("k", 32)), time.Hour}}, made[0], made[1], made[2], root
}

func exchange(t testing.TB, a *Authenticator, credential string, now time.Time) string {
	t.Helper()
	token, err := a.Exchange(credential, now)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// owner is Owner with "" for whoever is refused.
func owner(t testing.TB, a *Authenticator, credential string) string {
	t.Helper()
	name, err := a.Owner(credential)
	if (name == "") != errors.Is(err, ErrUnknown) {
		t.Errorf("got %q, %v", name, err)
	}
	return name
}

func TestTokens(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	a, ann, _, _, _ := authenticator(t)
	token := exchange(t, a, ann, now)
	if !strings.HasPrefix(token, "eyJ") {
		t.Errorf("token begins %q, the SDK wants eyJ", token[:3])
	}
	parts := strings.Split(token, ".")
	for _, c := range []struct {
		name, token string
		at          time.Time
		subject     string
	}{
		{"fresh", token, now, "tml:user:ann"},
		{"just before the end", token, now.Add(time.Hour - time.Second), "tml:user:ann"},
		{"expired", token, now.Add(time.Hour), ""},
		{"changed body", parts[0] + "." + parts[1] + "x." + parts[2], now, ""},
		{"line breaks in the signature", parts[0] + "." + parts[1] + "." + parts[2][:9] + "\r\n" + parts[2][9:], now, ""},
		{"line breaks in the body", parts[0] + "." + parts[1][:9] + "\r\n" + parts[1][9:] + "." + parts[2], now, ""},
		{"padding", token + "=", now, ""},
		{"a part more", token + ".", now, ""},
		{"no signature", parts[0] + "." + parts[1] + ".", now, ""},
		{"alg none", "eyJhbGciOiJub25lIn0." + parts[1] + ".", now, ""},
		{"empty", "", now, ""},
		{"huge", strings.Repeat("a.", 4096), now, ""},
	} {
		got, err := a.Tokens.open(c.token, c.at)
		if got.Subject != c.subject || (c.subject == "") != errors.Is(err, ErrUnknown) {
			t.Errorf("%s: got %q, %v", c.name, got.Subject, err)
		}
	}
	if _, err := (Tokens{[]byte(strings.Repeat("j", 32)), time.Hour}).open(token, now); !errors.Is(err, ErrUnknown) {
		t.Errorf("a token of another server: %v", err)
	}
}

// No other text is taken for a token: not with any one character changed, taken away or put in between, nor with what decoders pass over signed anew.
func TestOneFormOfToken(t *testing.T) {
	a, ann, _, _, _ := authenticator(t)
	token := exchange(t, a, ann, time.Now())
	if owner(t, a, token) != "ann" {
		t.Fatal("the token does not work")
	}
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=. \r\n\x00"
	for at := range len(token) {
		if owner(t, a, token[:at]+token[at+1:]) != "" {
			t.Errorf("accepted without character %d", at)
		}
		for _, c := range alphabet {
			if byte(c) != token[at] && owner(t, a, token[:at]+string(c)+token[at+1:]) != "" {
				t.Errorf("accepted with %q as character %d", c, at)
			}
			if owner(t, a, token[:at]+string(c)+token[at:]) != "" {
				t.Errorf("accepted with %q before character %d", c, at)
			}
		}
	}
	c, err := a.Tokens.open(token, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	signature := token[strings.LastIndexByte(token, '.'):]
	text := func(head, body string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + base64.RawURLEncoding.EncodeToString([]byte(body)) + signature
	}
	if text(header, string(plain)) != token {
		t.Fatal("the forms are made of something else than the token")
	}
	for name, other := range map[string]string{
		"another header":      text(`{"typ":"JWT","alg":"HS256"}`, string(plain)),
		"a claim twice":       text(header, strings.Replace(string(plain), "{", `{"sub":"tml:user:bob",`, 1)),
		"a claim more":        text(header, strings.Replace(string(plain), "{", `{"email":"a@b",`, 1)),
		"another case":        text(header, strings.Replace(string(plain), `"sub"`, `"SUB"`, 1)),
		"blanks":              text(header, " "+string(plain)),
		"escapes":             text(header, strings.Replace(string(plain), "ann", `\u0061nn`, 1)),
		"something behind it": text(header, string(plain)+"{}"),
	} {
		if owner(t, a, other) != "" {
			t.Errorf("accepted: %s", name)
		}
	}
}

// A token is worth what its key is: it has the key's rights, and ends with it, whatever other keys the name has or gets.
func TestTokenEndsWithItsKey(t *testing.T) {
	a, ann, second, bob, root := authenticator(t)
	of := map[string]string{}
	for _, key := range []string{ann, second, bob, root} {
		of[key] = exchange(t, a, key, time.Now())
	}
	if a.Admin(of[ann]) || !a.Admin(of[root]) || !a.Admin(root) || a.Admin("eyJx") {
		t.Error("a token has not the rights of its key")
	}
	if err := a.Ring.Revoke(ann); err != nil {
		t.Fatal(err)
	}
	if owner(t, a, of[ann]) != "" {
		t.Error("the token of a revoked key works, by another key of the same name")
	}
	if _, err := a.Exchange(of[ann], time.Now()); !errors.Is(err, ErrUnknown) {
		t.Errorf("it is exchanged: %v", err)
	}
	if owner(t, a, of[second]) != "ann" || owner(t, a, of[bob]) != "bob" {
		t.Error("tokens of other keys ended as well")
	}
	if err := a.Ring.Revoke(second); err != nil {
		t.Fatal(err)
	}
	later, err := Add(a.Ring.path, "ann")
	if err != nil {
		t.Fatal(err)
	}
	a.Ring.mu.Lock()
	a.Ring.checked = time.Time{} // as if a second had passed
	a.Ring.mu.Unlock()
	if owner(t, a, later) != "ann" || owner(t, a, of[second]) != "" {
		t.Error("the token of a revoked key works, by a later key of the same name")
	}
}

// The claims are for everybody to read: they must not tell of the key, nor of what the keys file holds.
func TestFingerprintTellsNothing(t *testing.T) {
	a, ann, _, _, _ := authenticator(t)
	e, err := a.Ring.find(byKey(ann))
	if err != nil {
		t.Fatal(err)
	}
	one := a.Tokens.fingerprint(e.hash)
	if other := (Tokens{Secret: []byte(strings.Repeat("j", 32))}).fingerprint(e.hash); one == other || len(one) != 22 {
		t.Errorf("%q, with another secret %q", one, other)
	}
}

func TestExchangeRenewsNothing(t *testing.T) {
	a, ann, _, _, _ := authenticator(t)
	now := time.Now()
	token := exchange(t, a, ann, now)
	if again := exchange(t, a, token, now.Add(time.Minute)); again != token {
		t.Errorf("a token became another one: %s", again)
	}
	if _, err := a.Exchange(token, now.Add(time.Hour-time.Minute)); !errors.Is(err, ErrRenewal) {
		t.Errorf("near its end: %v", err)
	}
	for _, credential := range []string{"", "tml-x", "eyJ.x.y", token + "x"} {
		if _, err := a.Exchange(credential, now); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", credential, err)
		}
	}
	keyless := &Authenticator{Ring: &Ring{}, Tokens: a.Tokens}
	mine := exchange(t, keyless, "tml-local", now)
	if owner(t, keyless, mine) != Anonymous || owner(t, a, mine) != "" {
		t.Error("a token of a server without keys is worth something on one with keys")
	}
}

func FuzzToken(f *testing.F) {
	// The same in every process that the fuzzing takes part in.
	a := &Authenticator{Tokens: Tokens{[]byte(strings.Repeat("k", 32)), time.Hour}}
	now := time.Unix(1_800_000_000, 0)
	good, err := a.Tokens.issue(entry{name: "ann"}, now)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := a.Tokens.open(token, now); err == nil && (c.Subject != "tml:user:ann" || token != good) {
			t.Errorf("accepted %q as %q", token, c.Subject)
		}
	})
}
