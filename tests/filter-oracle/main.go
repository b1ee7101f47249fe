// Judges packets as Tailscale's own filter does, for the tests of linerate's packet::filter. It
// answers each line of its stdin with one of its stdout:
//
//	policy JSON   from now on by these rules; the flows that were begun are kept as tailscaled does
//	out HEX       sends a packet
//	in HEX        receives one: accept or drop
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"go4.org/netipx"
	"tailscale.com/net/packet"
	"tailscale.com/tailcfg"
	"tailscale.com/types/logger"
	"tailscale.com/wgengine/filter"
)

type policy struct {
	Rules     []tailcfg.FilterRule
	Local     []string
	ShieldsUp bool
}

func main() {
	var rules *filter.Filter
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "policy":
			rules = compile(rest, rules)
			fmt.Println("ok")
		case "out":
			rules.RunOut(parse(rest), 0)
			fmt.Println("ok")
		case "in":
			fmt.Println(strings.ToLower(rules.RunIn(parse(rest), 0).String()))
		default:
			log.Fatalf("unknown verb %q", verb)
		}
	}
}

func parse(text string) *packet.Parsed {
	bytes, err := hex.DecodeString(text)
	if err != nil {
		log.Fatal(err)
	}
	parsed := new(packet.Parsed)
	parsed.Decode(bytes)
	return parsed
}

func compile(text string, before *filter.Filter) *filter.Filter {
	var policy policy
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		log.Fatal(err)
	}
	matches, err := filter.MatchesFromFilterRules(policy.Rules)
	if err != nil {
		log.Fatal(err)
	}
	var builder netipx.IPSetBuilder
	for _, text := range policy.Local {
		addresses, err := netipx.ParseIPRange(text)
		if err != nil {
			log.Fatal(err)
		}
		builder.AddRange(addresses)
	}
	local, err := builder.IPSet()
	if err != nil {
		log.Fatal(err)
	}
	if policy.ShieldsUp {
		return filter.NewShieldsUpFilter(local, nil, before, logger.Discard)
	}
	return filter.New(matches, nil, local, nil, before, logger.Discard)
}
