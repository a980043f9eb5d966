package keys

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/redact"
)

// Tokens issues and checks JSON Web Tokens (HS256) for keys. The Tinker SDK exchanges its key for one and reads exp, iat, sub, org_id and email from it.
type Tokens struct {
	Secret   []byte // at least 32 bytes
	Lifetime time.Duration
}

// claims are in the order they are written.
type claims struct {
	Issuer   string `json:"iss"`
	Subject  string `json:"sub"`
	Org      string `json:"org_id"`
	IssuedAt int64  `json:"iat"`
	Expires  int64  `json:"exp"`
	Key      string `json:"key"` // the fingerprint of the key that the token was made with
}

const (
	header        = `{"alg":"HS256","typ":"JWT"}` // no leading space: the token must begin "eyJ"
	tokenPrefix   = "eyJ"
	subjectPrefix = "tml:user:"
	maxTokenBytes = 4096
	// lastMinutes of a token's life it is not given back for itself: SDKs to 0.36 would ask again at once, without a pause, from five minutes before the end.
	lastMinutes = 10 * time.Minute
)

// ErrRenewal says that a token was to be exchanged for a token that lives longer.
var ErrRenewal = errors.New("a token cannot be renewed: exchange the API key for another one")

// fingerprint stands for a key in tokens and links. Without the secret it tells nothing about the key, nor about its hash, which is in the keys file.
func (t Tokens) fingerprint(hash [sha256.Size]byte) string {
	mac := hmac.New(sha256.New, t.Secret)
	mac.Write([]byte("the fingerprint of a key\x00")) // no token begins so: what is signed there cannot be taken for this
	mac.Write(hash[:])
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// fingerprinted chooses the entry of an owner whose key has a fingerprint.
func (t Tokens) fingerprinted(owner, fingerprint string) func(entry) bool {
	return func(e entry) bool {
		return e.name == owner && hmac.Equal([]byte(t.fingerprint(e.hash)), []byte(fingerprint))
	}
}

// issue makes a token for a key.
func (t Tokens) issue(e entry, now time.Time) (string, error) {
	return t.seal(claims{
		Issuer: "tinsmith", Subject: subjectPrefix + e.name, Org: "tinsmith", IssuedAt: now.Unix(), Expires: now.Add(t.Lifetime).Unix(), Key: t.fingerprint(e.hash),
	})
}

// seal gives the one text of a token with these claims.
func (t Tokens) seal(c claims) (string, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("issue token: %w", err)
	}
	signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(body)
	mac := hmac.New(sha256.New, t.Secret)
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), nil
}

// open gives the claims of a token that is ours, unchanged and not expired; else ErrUnknown. Whether its key is still there is not looked at.
func (t Tokens) open(token string, now time.Time) (claims, error) {
	if len(token) > maxTokenBytes {
		return claims{}, ErrUnknown
	}
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	body, err := base64.RawURLEncoding.DecodeString(payload)
	var c claims
	if err != nil || json.Unmarshal(body, &c) != nil {
		return claims{}, ErrUnknown
	}
	// The token is compared with the one text that says the same, as text: decoders skip line breaks and spare bits, and take claims that come twice.
	sealed, err := t.seal(c)
	if err != nil || !hmac.Equal([]byte(token), []byte(sealed)) || now.Unix() >= c.Expires || !strings.HasPrefix(c.Subject, subjectPrefix) {
		return claims{}, ErrUnknown
	}
	return c, nil
}

// Authenticator finds out who a request is from, by key or by token.
type Authenticator struct {
	Ring     *Ring
	Tokens   Tokens
	Redactor *redact.Redactor // of what callers are told who are no administrators; nil knows no names
}

// chosen gives the condition by which the ring finds the entry of a credential.
func (a *Authenticator) chosen(credential string) (func(entry) bool, error) {
	if !strings.HasPrefix(credential, tokenPrefix) || !a.Ring.Required() {
		return byKey(credential), nil
	}
	c, err := a.Tokens.open(credential, time.Now())
	if err != nil {
		return nil, err
	}
	return a.Tokens.fingerprinted(strings.TrimPrefix(c.Subject, subjectPrefix), c.Key), nil
}

func (a *Authenticator) find(credential string) (entry, error) {
	chosen, err := a.chosen(credential)
	if err != nil {
		return entry{}, err
	}
	return a.Ring.find(chosen)
}

// Owner takes the credential of a request, a key or a token of ours, and gives its owner, or ErrUnknown. A token is worth as much as the key that it was made with, and as long.
func (a *Authenticator) Owner(credential string) (string, error) {
	e, err := a.find(credential)
	return e.name, err
}

// Admin tells whether a credential is an administrator's, or a token of one. Without a keys file everybody is one: whoever reaches the server is its operator.
func (a *Authenticator) Admin(credential string) bool {
	e, err := a.find(credential)
	return err == nil && e.admin
}

// Exchange gives a token for a key. A token is given back as it is, so that clients work that were given one instead of a key, and with ErrRenewal not at all when its end is near: it never becomes another
// one that lives longer. ErrUnknown for anything else. Without a keys file, where everything is taken for a key, everything gets a new one.
func (a *Authenticator) Exchange(credential string, now time.Time) (token string, err error) {
	e, err := a.find(credential)
	if err != nil {
		return "", err
	}
	if c, err := a.Tokens.open(credential, now); err == nil && a.Ring.Required() {
		if time.Unix(c.Expires, 0).Sub(now) < lastMinutes {
			return "", ErrRenewal
		}
		return credential, nil
	}
	return a.Tokens.issue(e, now)
}

// Credential reads a request's key: the header X-API-Key, or else a bearer token.
func Credential(h http.Header) string {
	if key := h.Get("X-Api-Key"); key != "" {
		return key
	}
	if scheme, token, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}
