package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// What browsers are told about answers to pages of other origins. Keys go into headers and never into cookies, so credentials are not allowed.
const (
	corsMethods   = "GET, HEAD, POST, PUT, DELETE"
	corsExposed   = "X-Request-Id, Request-Id, X-Tinsmith-Dropped-Tools, Retry-After, X-Deprecation-Note, X-Deprecation-Level"
	corsMaxAge    = "600" // seconds for which a browser need not ask again
	maxCORSFields = 4096  // bytes of the names of headers that a page asks for
)

// shared is the middleware that lets web pages of some origins read the answers: those of this machine and of public_url, and the allowed ones, "*" standing for all. It answers the question that a browser asks before it sends such
// a request. What pages of other origins send is answered as before; their browser does not let them read it.
func shared(publicURL string, allowed []string) gin.HandlerFunc {
	public := ""
	if u, err := url.Parse(publicURL); err == nil {
		public = u.Hostname()
	}
	return func(c *gin.Context) {
		h := c.Writer.Header()
		h.Add("Vary", "Origin")
		origins := c.Request.Header.Values("Origin")
		if len(origins) != 1 || origins[0] == "" {
			return
		}
		switch origin := origins[0]; {
		case slices.Contains(allowed, origin), isOurs(origin, public):
			h.Set("Access-Control-Allow-Origin", origin)
		case slices.Contains(allowed, "*"):
			h.Set("Access-Control-Allow-Origin", "*")
		default:
			return
		}
		if c.Request.Method != http.MethodOptions || c.GetHeader("Access-Control-Request-Method") == "" {
			h.Set("Access-Control-Expose-Headers", corsExposed)
			return
		}
		h.Add("Vary", "Access-Control-Request-Headers")
		h.Set("Access-Control-Allow-Methods", corsMethods)
		if fields := c.GetHeader("Access-Control-Request-Headers"); fields != "" && len(fields) <= maxCORSFields && areNames(fields) {
			h.Set("Access-Control-Allow-Headers", fields)
		}
		if c.GetHeader("Access-Control-Request-Private-Network") == "true" {
			h.Set("Access-Control-Allow-Private-Network", "true")
		}
		h.Set("Access-Control-Max-Age", corsMaxAge)
		c.AbortWithStatus(http.StatusNoContent)
	}
}

// areNames tells whether a text is a list of names of headers.
func areNames(list string) bool {
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" || strings.IndexFunc(name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
		}) >= 0 {
			return false
		}
	}
	return true
}
