package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// onlyLocal is the middleware of a server that asks for no keys and listens on loopback only: whoever can send to it may use it, and a web page that is open in a browser on this machine can. Browsers
// say in Origin for whom they ask, and in Sec-Fetch-Site whether that is somebody else. A page whose own name was made to mean 127.0.0.1 needs no Origin, but sends that name as Host. What no browser and no
// client sends, such as two origins, is refused as well: whoever reads it after us may choose the other one.
func onlyLocal(publicURL string) gin.HandlerFunc {
	public := "" // behind a proxy requests come with its name
	if u, err := url.Parse(publicURL); err == nil {
		public = u.Hostname()
	}
	return func(c *gin.Context) {
		// A request to a proxy names a host in its first line, maybe another one than in Host, maybe with a user.
		if c.Request.URL.Host != "" || c.Request.URL.User != nil || !answersTo(c.Request.Host, public) {
			unknown(c, http.StatusForbidden, "this server asks for no keys, so it answers to localhost, to addresses and to the host of public_url only, not to the host of this request")
			c.Abort()
			return
		}
		if isForeign(c.Request.Header, public) {
			unknown(c, http.StatusForbidden, "this server asks for no keys, so it answers no web pages but those of this machine and of public_url")
			c.Abort()
			return
		}
		c.Next()
	}
}

// answersTo tells whether the host that a request was sent to is a name of ours. Go's server has refused requests with two Host headers by then.
func answersTo(hostport, public string) bool {
	if hostport == "" { // HTTP/1.0, which no browser speaks
		return true
	}
	host, ok := hostname(hostport)
	if !ok {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return isLocal(host) || isPublic(host, public)
}

// isForeign tells whether a browser sends a request for a page that is not ours. Other clients send neither header, and a user who types the address or opens a link of ours has the site "none" or "same-origin".
func isForeign(h http.Header, public string) bool {
	origins, sites := h.Values("Origin"), h.Values("Sec-Fetch-Site")
	if len(origins) > 1 || len(sites) > 1 {
		return true
	}
	if len(origins) == 1 && origins[0] != "" {
		return !isOurs(origins[0], public)
	}
	return len(sites) == 1 && sites[0] != "" && sites[0] != "same-origin" && sites[0] != "none"
}

// isOurs tells whether an origin is this machine's or the proxy's: http or https, a host, maybe a port, and nothing else.
func isOurs(origin, public string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || origin != u.Scheme+"://"+u.Host {
		return false
	}
	host, ok := hostname(u.Host)
	return ok && (isLocal(host) || isPublic(host, public))
}

// hostname takes the port off. It is no host if there is anything else in it, such as a user's name: clients do not agree about what it is then.
func hostname(hostport string) (string, bool) {
	host := hostport
	if name, port, err := net.SplitHostPort(hostport); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil && port != "" {
			return "", false
		}
		host = name
	} else if inner, ok := strings.CutPrefix(hostport, "["); ok {
		if host, ok = strings.CutSuffix(inner, "]"); !ok {
			return "", false
		}
	}
	return host, host != "" && !strings.ContainsAny(host, "@/\\?#,;[] \t")
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
