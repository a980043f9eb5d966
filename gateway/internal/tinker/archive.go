package tinker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// archive answers with a link that needs no key (SDK to 0.35 fetches it without headers): as JSON, or as a redirect for clients that ask for the archive itself.
func (s *Service) archive(c call) (any, error) {
	p, err := path(c)
	if err != nil {
		return nil, err
	}
	if runs.CheckpointKind(c.Param("kind")) == runs.KindWeights {
		return nil, badRequestf("checkpoint %s: training checkpoints cannot be downloaded as an archive; save one with save_weights_for_sampler", p)
	}
	token, expires, err := s.core.ArchiveToken(c, c.requester(), p)
	if err != nil {
		return nil, err
	}
	url := s.baseURL(c) + Prefix + "/archives/" + token
	if accepts(c, "application/gzip") {
		c.Header("Location", url)
		c.Header("Expires", expires.UTC().Format(http.TimeFormat))
		return status{http.StatusFound, gin.H{"url": url}}, nil
	}
	return gin.H{"url": url, "expires": expires}, nil
}

func (s *Service) externalURLs(c call) (any, error) {
	p, err := path(c)
	if err != nil {
		return nil, err
	}
	tokens, err := s.core.FileTokens(c, c.requester(), p)
	if err != nil {
		return nil, err
	}
	urls := make(map[string]string, len(tokens.Tokens))
	for name, token := range tokens.Tokens {
		urls[name] = s.baseURL(c) + Prefix + "/files/" + token
	}
	return gin.H{"urls": urls, "expires": tokens.Expires}, nil
}

// requester is who asks for a link.
func (c call) requester() runs.Requester {
	return runs.Requester{Owner: c.owner, Key: c.bearer.Fingerprint()}
}

// linked wraps a handler of links, which come without a key: a link ends with the key that it was asked for with, and so does a download that has begun.
func (s *Service) linked(h func(c *gin.Context, owner string)) gin.HandlerFunc {
	return func(c *gin.Context) {
		by, err := s.core.Requester(c.Param("token"))
		if err != nil {
			fail(c, err)
			return
		}
		r, err := s.auth.BeginLink(c.Writer, c.Request, by.Owner, by.Key)
		if err != nil {
			fail(c, &refusal{http.StatusForbidden, "the key that the link was made with was revoked; ask for a new one with another key"})
			return
		}
		defer r.Release()
		c.Request = r.Request
		h(c, r.Owner)
	}
}

// archives streams a tar to the bearer of a token.
func (s *Service) archives(c *gin.Context, _ string) {
	name, write, err := s.core.OpenArchive(c.Request.Context(), c.Param("token"))
	if err != nil {
		fail(c, err)
		return
	}
	sendTar(c, name, write)
}

// sendTar streams a tar. Where it cannot be finished the connection is broken.
func sendTar(c *gin.Context, name string, write func(io.Writer) error) {
	c.Header("Content-Type", "application/x-tar")
	c.Header("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	c.Status(http.StatusOK)
	if err := write(c.Writer); err != nil {
		// The status is sent: only a broken connection can tell the client that the tar is not whole.
		level := slog.LevelError
		if c.Request.Context().Err() != nil || errors.Is(err, os.ErrDeadlineExceeded) {
			level = slog.LevelDebug // the client went away, or does not read
		}
		slog.Log(c.Request.Context(), level, "archive ended early", "error", err)
		panic(http.ErrAbortHandler)
	}
}

// files sends one file of an exported checkpoint to the bearer of a token, with ranges.
func (s *Service) files(c *gin.Context, _ string) {
	name, modified, f, err := s.core.OpenFile(c.Request.Context(), c.Param("token"))
	if err != nil {
		fail(c, err)
		return
	}
	defer f.Close()
	c.Header("Content-Type", "application/octet-stream")
	c.Header("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	http.ServeContent(c.Writer, c.Request, name, modified, f)
}
