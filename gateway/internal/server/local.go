package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/gin-gonic/gin"
)

// onlyLocal is the middleware of a server that asks for no keys and listens on loopback only: whoever can send to it may use it, and a web page that is open in a browser on this machine can. Browsers
// say in Origin for whom they ask. A page whose own name was made to mean 127.0.0.1 needs no Origin, but sends that name as Host.
func onlyLocal(publicURL string) gin.HandlerFunc {
	public := "" // behind a proxy requests come with its name
	if u, err := url.Parse(publicURL); err == nil {
		public = u.Hostname()
	}
	return func(c *gin.Context) {
		host := hostname(c.Request.Host)
		_, notAddress := netip.ParseAddr(host)
		if host != "" && notAddress != nil && !isLocal(host) && !isPublic(host, public) {
			unknown(c, http.StatusForbidden, "this server asks for no keys, so it answers to localhost, to addresses and to the host of public_url only, not to the host of this request")
			c.Abort()
			return
		}
		if origin := c.GetHeader("Origin"); origin != "" {
			u, err := url.Parse(origin)
			if err != nil || !isLocal(u.Hostname()) && !isPublic(u.Hostname(), public) {
				unknown(c, http.StatusForbidden, "this server asks for no keys, so it answers no web pages but those of this machine and of public_url")
				c.Abort()
				return
			}
		}
		c.Next()
	}
}

// hostname takes the port off.
func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func isPublic(host, public string) bool { return public != "" && strings.EqualFold(host, public) }

// isLocal tells whether a name or an address means this machine wherever it is looked up.
func isLocal(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}
