package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sashabaranov/go-openai"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// maxLine bounds what one turn may say: a pasted document, not a file by mistake.
const maxLine = 4 << 20

func chatCommand() *cobra.Command {
	c := &cobra.Command{Use: "chat", Short: "Talk to a model or an adapter in the terminal", Args: cobra.NoArgs}
	conn := addConnection(c)
	model := c.Flags().String("model", "", "a base model, NAME:latest, tinker://RUN, or tinker://RUN/sampler_weights/NAME (default: the first model served)")
	system := c.Flags().String("system", "", "system message")
	temperature := c.Flags().Float32("temperature", 0, "0 = the likeliest answer (default: the model's own)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		config := openai.DefaultConfig(conn.key)
		config.BaseURL = conn.url + "/v1"
		client := openai.NewClientWithConfig(config)
		if *model == "" {
			list, err := client.ListModels(c.Context())
			if err != nil {
				return err
			}
			if len(list.Models) == 0 {
				return errors.New("the server serves no model")
			}
			*model = list.Models[0].ID
		}
		t := &conversation{client: client, in: bufio.NewScanner(c.InOrStdin()), out: c.OutOrStdout(), prompt: term.IsTerminal(int(os.Stdin.Fd()))}
		t.in.Buffer(nil, maxLine)
		t.request.Model = *model
		if c.Flags().Changed("temperature") {
			t.request.Temperature = *temperature
			if *temperature == 0 {
				t.request.Temperature = 1e-45 // the client library leaves a plain 0 out of the request
			}
		}
		if *system != "" {
			t.request.Messages = []openai.ChatCompletionMessage{{Role: openai.ChatMessageRoleSystem, Content: *system}}
		}
		if t.prompt {
			fmt.Fprintf(t.out, "talking to %s; an empty line or ctrl-D ends\n", *model)
		}
		return t.run(c.Context())
	}
	return c
}

// conversation is a chat that grows with every turn.
type conversation struct {
	client  *openai.Client
	request openai.ChatCompletionRequest
	in      *bufio.Scanner
	out     io.Writer
	prompt  bool // a person is typing
}

func (t *conversation) run(ctx context.Context) error {
	for {
		if t.prompt {
			fmt.Fprint(t.out, "> ")
		}
		if !t.in.Scan() || strings.TrimSpace(t.in.Text()) == "" {
			return t.in.Err()
		}
		t.request.Messages = append(t.request.Messages, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleUser, Content: t.in.Text()})
		answer, err := t.answer(ctx)
		if err != nil {
			return err
		}
		t.request.Messages = append(t.request.Messages, openai.ChatCompletionMessage{Role: openai.ChatMessageRoleAssistant, Content: answer})
	}
}

// answer prints the reply as it comes and returns it whole.
func (t *conversation) answer(ctx context.Context) (string, error) {
	stream, err := t.client.CreateChatCompletionStream(ctx, t.request)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	var whole strings.Builder
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			fmt.Fprintln(t.out)
			return whole.String(), nil
		}
		if err != nil {
			return "", err
		}
		for _, choice := range part.Choices {
			whole.WriteString(choice.Delta.Content)
			fmt.Fprint(t.out, choice.Delta.Content)
		}
	}
}
