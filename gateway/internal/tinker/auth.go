package tinker

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
)

// authToken exchanges the caller's key for a token. The SDK sends its key here each time that a token comes to its end. Where it was given a token for a key, it sends that, and gets it back: it is not renewed.
func (s *Service) authToken(c call) (any, error) {
	token, err := s.auth.Exchange(keys.Credential(c.Request.Header), time.Now())
	switch {
	case errors.Is(err, keys.ErrRenewal):
		return nil, &refusal{http.StatusUnauthorized, err.Error()}
	case errors.Is(err, keys.ErrUnknown): // it was revoked just now
		return nil, &refusal{http.StatusUnauthorized, keys.TellRefused(err)}
	case err != nil:
		return nil, err
	}
	return gin.H{"jwt": token}, nil
}

// apiKey describes the caller's key. Keys have names, no numbers: the id is the first 31 bits of the name's hash, stable and free of secrets.
// `tinker auth login` demands an organization and the user's e-mail address; a server like this has neither, its name and the key's stand there.
func (s *Service) apiKey(c call) (any, error) {
	hash := sha256.Sum256([]byte(c.owner))
	return gin.H{"key_id": binary.BigEndian.Uint32(hash[:4]) >> 1, "name": c.owner, "note": "", "details": gin.H{
		"org_details": gin.H{"name": "tinsmith"}, "user_details": gin.H{"email": c.owner},
	}}, nil
}

// revokeAPIKey removes the key that the request carries.
func (s *Service) revokeAPIKey(c call) (any, error) {
	switch err := s.auth.Ring.Revoke(keys.Credential(c.Request.Header)); {
	case errors.Is(err, keys.ErrUnknown):
		return nil, notFoundf("this credential is a token, not a key: use the key itself")
	case !s.auth.Ring.Required():
		return nil, badRequestf("this server has no keys file: there is no key to revoke")
	case err != nil:
		return nil, fmt.Errorf("revoke key: %w", err)
	}
	c.Header("Connection", "close") // it ends with the key
	return nil, nil
}
