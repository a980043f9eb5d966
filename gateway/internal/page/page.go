// Package page serves the page at `/`: runs and their curves, chat, the device, users. It is plain ES modules without a build step, held in the program, and uses the same API, with the same keys, as everybody else.
//
// assets/ has one file per view in views/, what they share beside them, and in vendor/ the one library there is, as its authors publish it.
package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"github.com/gin-gonic/gin"
)

//go:embed assets
var assets embed.FS

// policy lets the page load its own files and talk to its own server, and nothing else: no code or style in the markup, nothing of another origin, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file is one of assets as it is sent.
type file struct {
	content   []byte
	mediaType string
	etag      string
}

// Register adds the routes.
func Register(r gin.IRouter) {
	files := load(assets)
	send := func(c *gin.Context, name string) {
		f, ok := files[name]
		if !ok {
			c.JSON(http.StatusNotFound, gin.H{"detail": "the page has no such file"})
			return
		}
		h := c.Writer.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache") // asked for with the tag every time: another version of the server has other files under the same names
		h.Set("ETag", f.etag)
		if c.GetHeader("If-None-Match") == f.etag {
			c.Status(http.StatusNotModified)
			return
		}
		c.Data(http.StatusOK, f.mediaType, f.content)
	}
	index := func(c *gin.Context) { send(c, "index.html") }
	named := func(c *gin.Context) { send(c, strings.TrimPrefix(c.Param("file"), "/")) }
	r.GET("/", index)
	r.HEAD("/", index)
	r.GET("/page/*file", named)
	r.HEAD("/page/*file", named)
}

// load reads all files of assets.
func load(from fs.FS) map[string]file {
	files := map[string]file{}
	err := fs.WalkDir(from, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		files[strings.TrimPrefix(name, "assets/")] = file{content, mediaType(name), `"` + hex.EncodeToString(sum[:16]) + `"`}
		return nil
	})
	if err != nil {
		panic(err) // the files are in the program
	}
	return files
}

// mediaType does not ask the system's tables, which differ.
func mediaType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/plain; charset=utf-8"
}
