// Writes how many users are in each zone: zones_of_rides --expansion=ADDRESS --key=FILE --output=FILE, then Beam's options.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"reflect"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/core/typex"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/textio"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/xlang/python"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/x/beamx"
)

type ride struct {
	Rider string  `beam:"rider"`
	Lat   float64 `beam:"lat"`
	Lon   float64 `beam:"lon"`
}

// options are those of `sfumato zones`.
type options struct {
	H3      int64   `beam:"h3"`
	Region  string  `beam:"region"`
	Epsilon float64 `beam:"epsilon"`
	UserID  string  `beam:"user_id_column"`
	Lat     string  `beam:"latitude_column"`
	Lon     string  `beam:"longitude_column"`
	KeyFile string  `beam:"key_file"`
}

type none struct{}

// zone is a row of the table of zones. It has no name of its own: Beam decodes another language's rows to such a type.
type zone = struct {
	Zone      string  `beam:"zone"`
	Level     string  `beam:"level"`
	Parent    *string `beam:"parent"`
	Users     float64 `beam:"users"`
	Stddev    float64 `beam:"stddev"`
	Low       float64 `beam:"low"`
	High      float64 `beam:"high"`
	Area      float64 `beam:"area"`
	Density   float64 `beam:"density"`
	Longitude float64 `beam:"longitude"`
	Latitude  float64 `beam:"latitude"`
	Geometry  []byte  `beam:"geometry"`
}

func lineOf(row zone) string { return fmt.Sprintf("%s,%g", row.Zone, row.Users) }

func main() {
	expansion := flag.String("expansion", "localhost:8097", "address of the expansion service")
	key := flag.String("key", "key", "file of the key")
	output := flag.String("output", "zones.csv", "file to write")
	flag.Parse()
	beam.Init()
	riders := make([]ride, 10_000)
	for number := range riders {
		riders[number] = ride{fmt.Sprintf("r%d", number), 1 + float64(number)/1e5, 3.05}
	}
	pipeline, scope := beam.NewPipelineWithRoot()
	rides := beam.CreateList(scope, riders)
	step := python.NewExternalTransform[none, options]("sfumato.beam.PrivateZones")
	step.WithKwargs(options{7, "3.00,1.00,3.13,1.13", 1, "rider", "lat", "lon", *key})
	zones := beam.CrossLanguage(scope, "beam:transforms:python:fully_qualified_named", beam.CrossLanguagePayload(step),
		*expansion, beam.UnnamedInput(rides), beam.UnnamedOutput(typex.New(reflect.TypeOf(zone{}))))
	textio.Write(scope, *output, beam.ParDo(scope, lineOf, zones[beam.UnnamedOutputTag()]))
	if err := beamx.Run(context.Background(), pipeline); err != nil {
		log.Fatal(err)
	}
}
