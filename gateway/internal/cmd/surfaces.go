package cmd

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/anthropic"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/openai"
)

// surfaces are the routes of the APIs that answer with text. Models of two of them are asked for under the same paths; a header says which API is meant.
func surfaces(answers *inference.Service) []func(gin.IRouter) {
	chat, messages := openai.New(answers), anthropic.New(answers)
	chat.Others = openai.Others{Header: anthropic.VersionHeader, List: messages.ListModels(), Get: messages.GetModel()}
	return []func(gin.IRouter){chat.Register, messages.Register}
}
