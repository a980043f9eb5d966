package server

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// connectionErrors takes what net/http says about connections that failed. Most of it is everyday business of a network, and for the debugging level. That
// a client does not believe the server's certificate is not: the client may say nothing and try for ever, and whoever waits for it looks here. It is safe
// for concurrent use.
type connectionErrors struct {
	mu     sync.Mutex
	warned time.Time
}

// warnEvery is how often refused certificates are told at most: anybody can open connections.
const warnEvery = time.Minute

// distrust are the alerts by which a client refuses a certificate, in the words of crypto/tls.
var distrust = []string{"tls: unknown certificate", "tls: bad certificate", "tls: unsupported certificate", "tls: expired certificate", "tls: revoked certificate"}

// Write takes one message.
func (e *connectionErrors) Write(message []byte) (int, error) {
	text := string(bytes.TrimSpace(message))
	for _, alert := range distrust {
		if strings.Contains(text, "remote error: "+alert) && e.mayWarn(time.Now()) {
			slog.Warn("a client refuses the server's certificate: it must have the certificate, or that of the authority that signed it, among those that it trusts, and the certificate must name the host "+
				"that the client asks for and be no authority itself", "error", text)
			return len(message), nil
		}
	}
	slog.Debug("a connection failed", "error", text)
	return len(message), nil
}

func (e *connectionErrors) mayWarn(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.warned.IsZero() && now.Sub(e.warned) < warnEvery {
		return false
	}
	e.warned = now
	return true
}
