package openai

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// sessionOf is the name of the session that a request belongs to, "" for none. id is its field.
func sessionOf(c inference.Call, id *string) string {
	if id != nil && *id != "" {
		return *id
	}
	return c.GetHeader("X-Session-Id")
}

// datumsPath is what the path of a session's training data ends with.
const datumsPath = "/datums"

// sessionInPath is the name of a session that a path ends with, with every escape undone.
func sessionInPath(c inference.Call) string { return strings.TrimPrefix(c.Param("session"), "/") }

// sessionDatums gives the turns of a remembered conversation as training data.
func (s *Service) sessionDatums(c inference.Call) error {
	session, ok := strings.CutSuffix(sessionInPath(c), datumsPath)
	if !ok {
		return s.unserved(c)
	}
	merged := false
	if text := c.Query("merge"); text != "" {
		var err error
		if merged, err = strconv.ParseBool(text); err != nil {
			return inference.Invalid("merge", "%.40q is not true or false", text)
		}
	}
	loss := inference.DatumLosses[0]
	if name := c.Query("loss"); name != "" {
		raw, err := json.Marshal(name)
		if err != nil {
			return err
		}
		if loss, err = inference.DatumLoss("loss", raw); err != nil {
			return err
		}
	}
	left := s.WholeBytes
	data, ok, err := s.Sessions().Datums(c.Owner, session, loss, merged, func(bytes int) error {
		if left -= bytes; left < 0 {
			return inference.Invalid("session", "its turns are more training data than is given in one answer, which is about %d MiB: ask for them merged, take return_datum with each turn, or make a session for each conversation", s.WholeBytes>>20)
		}
		return c.Claim.Take(int64(bytes))
	})
	if err != nil {
		return err
	}
	if !ok {
		return unknownSession(session)
	}
	return c.Send(http.StatusOK, gin.H{"object": "list", "data": data})
}

// forgetSession removes a remembered conversation.
func (s *Service) forgetSession(c inference.Call) error {
	session := sessionInPath(c)
	if !s.Sessions().Forget(c.Owner, session) {
		return unknownSession(session)
	}
	return c.Send(http.StatusOK, gin.H{"id": session, "object": "session.deleted", "deleted": true})
}

func unknownSession(id string) error {
	if len(id) > inference.MaxSessionName {
		id = id[:inference.MaxSessionName]
	}
	return &inference.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Param: "session", Code: "session_not_found",
		Message: "session " + strconv.Quote(id) + " is not known: chats with that session_id make it, and it is forgotten an hour after its last use",
	}
}
