import java.util.stream.*;
import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.extensions.python.PythonExternalTransform;
import org.apache.beam.sdk.io.TextIO;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.schemas.Schema;
import org.apache.beam.sdk.transforms.*;
import org.apache.beam.sdk.values.*;

/** Writes how many users are in each zone. Arguments: EXPANSION_SERVICE KEY_FILE OUTPUT, then Beam's options. */
public class ZonesOfRides {
  static final Schema RIDE =
      Schema.builder().addStringField("rider").addDoubleField("lat").addDoubleField("lon").build();

  public static void main(String[] args) {
    String[] options = Stream.of(args).skip(3).toArray(String[]::new);
    Pipeline pipeline = Pipeline.create(PipelineOptionsFactory.fromArgs(options).create());
    pipeline
        .apply("Riders", Create.of(IntStream.range(0, 10_000).boxed().collect(Collectors.toList())))
        .apply(
            "Rides",
            MapElements.into(TypeDescriptors.rows())
                .via(n -> Row.withSchema(RIDE).addValues("r" + n, 1.0 + n / 1e5, 3.05).build()))
        .setRowSchema(RIDE)
        .apply(
            PythonExternalTransform.<PCollection<Row>, PCollection<Row>>from("sfumato.beam.PrivateZones", args[0])
                .withKwarg("h3", 7)
                .withKwarg("region", "3.00,1.00,3.13,1.13")
                .withKwarg("epsilon", 1.0)
                .withKwarg("user_id_column", "rider")
                .withKwarg("latitude_column", "lat")
                .withKwarg("longitude_column", "lon")
                .withKwarg("key_file", args[1]))
        .apply(
            "Lines",
            MapElements.into(TypeDescriptors.strings())
                .via((Row zone) -> zone.getString("zone") + "," + zone.getDouble("users")))
        .apply(TextIO.write().to(args[2]).withSuffix(".csv").withoutSharding());
    pipeline.run().waitUntilFinish();
  }
}
