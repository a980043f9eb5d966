package tinker

import (
	"github.com/gin-gonic/gin"
)

// environment tells what `tinsmith env` needs: the names that are served and, where nobody needs a key, and so everybody is on this machine, the folder for what its clients are given to read.
func (s *Service) environment(call) (any, error) {
	models := []gin.H{}
	for _, m := range s.core.Models() {
		if s.opts.Directories[m.Name] == "" { // it could not be loaded
			continue
		}
		aliases := m.Aliases
		if aliases == nil {
			aliases = []string{}
		}
		models = append(models, gin.H{"name": m.Name, "aliases": aliases})
	}
	out := gin.H{"models": models, "key_required": s.auth.Ring.Required()}
	if !s.auth.Ring.Required() && s.opts.ClientFiles != "" {
		out["folder"] = s.opts.ClientFiles
	}
	return out, nil
}
