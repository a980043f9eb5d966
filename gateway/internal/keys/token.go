package keys

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Tokens issues and checks JSON Web Tokens (HS256) for owners. The Tinker SDK exchanges its key for one and reads exp, iat, sub, org_id and email from it.
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
}

const (
	header        = `{"alg":"HS256","typ":"JWT"}` // no leading space: the token must begin "eyJ"
	subjectPrefix = "tml:user:"
	maxTokenBytes = 4096
)

// Issue makes a token for an owner.
func (t Tokens) Issue(owner string, now time.Time) (string, error) {
	body, err := json.Marshal(claims{"tinsmith", subjectPrefix + owner, "tinsmith", now.Unix(), now.Add(t.Lifetime).Unix()})
	if err != nil {
		return "", fmt.Errorf("issue token: %w", err)
	}
	signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(body)
	return signed + "." + base64.RawURLEncoding.EncodeToString(t.sign(signed)), nil
}

// Owner gives the owner of a token that is ours, unchanged and not expired; else ErrUnknown.
func (t Tokens) Owner(token string, now time.Time) (string, error) {
	if len(token) > maxTokenBytes {
		return "", ErrUnknown
	}
	cut := strings.LastIndexByte(token, '.')
	if cut < 0 {
		return "", ErrUnknown
	}
	// Compared as text: a decoder would skip line breaks, and one signature would have many forms.
	if !hmac.Equal([]byte(token[cut+1:]), []byte(base64.RawURLEncoding.EncodeToString(t.sign(token[:cut])))) {
		return "", ErrUnknown
	}
	_, payload, ok := strings.Cut(token[:cut], ".")
	if !ok {
		return "", ErrUnknown
	}
	var c claims
	body, err := base64.RawURLEncoding.Strict().DecodeString(payload)
	if err != nil || json.Unmarshal(body, &c) != nil || now.Unix() >= c.Expires {
		return "", ErrUnknown
	}
	owner, ok := strings.CutPrefix(c.Subject, subjectPrefix)
	if !ok {
		return "", ErrUnknown
	}
	return owner, nil
}

func (t Tokens) sign(text string) []byte {
	mac := hmac.New(sha256.New, t.Secret)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// Authenticator finds out who a request is from, by key or by token.
type Authenticator struct {
	Ring   *Ring
	Tokens Tokens
}

// Owner takes the credential of a request, a key or a token of ours, and gives its owner, or ErrUnknown.
func (a *Authenticator) Owner(credential string) (string, error) {
	if strings.HasPrefix(credential, "eyJ") {
		if owner, err := a.Tokens.Owner(credential, time.Now()); err == nil && a.Ring.Exists(owner) {
			return owner, nil
		}
	}
	return a.Ring.Owner(credential)
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
