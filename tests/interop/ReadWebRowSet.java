import java.io.BufferedInputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.ResultSetMetaData;
import java.sql.Time;
import java.sql.Timestamp;
import java.util.Date;
import java.util.HexFormat;
import javax.sql.rowset.RowSetProvider;
import javax.sql.rowset.WebRowSet;

/**
 * What the JDK's own reader makes of a WebRowSet, one line a column and one a row, fields separated by U+001F:
 * {@code column NAME TYPE TYPENAME PRECISION SCALE NULLABLE}, {@code row VALUE ...}, and at the end {@code rows N}.
 * NULL is U+0000; dates and times are milliseconds since 1970; a line feed within a value is U+001E.
 * With {@code --count} only the number of rows and of characters in them is written.
 */
public final class ReadWebRowSet {
    public static void main(String[] arguments) throws Exception {
        boolean count = arguments[0].equals("--count");
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        WebRowSet rows = RowSetProvider.newFactory().createWebRowSet();
        try (InputStream in = new BufferedInputStream(Files.newInputStream(Path.of(arguments[count ? 1 : 0])))) {
            rows.readXml(in);
        }
        ResultSetMetaData metadata = rows.getMetaData();
        int columns = metadata.getColumnCount();
        if (!count) {
            for (int column = 1; column <= columns; column++) {
                line(out, "column", metadata.getColumnLabel(column), metadata.getColumnType(column),
                        metadata.getColumnTypeName(column), metadata.getPrecision(column),
                        metadata.getScale(column), metadata.isNullable(column));
            }
        }
        long number = 0;
        long characters = 0;
        rows.beforeFirst();
        while (rows.next()) {
            number++;
            Object[] values = new Object[columns + 1];
            values[0] = "row";
            for (int column = 1; column <= columns; column++) {
                values[column] = text(rows.getObject(column));
                characters += ((String) values[column]).length();
            }
            if (!count) {
                line(out, values);
            }
        }
        if (count) {
            line(out, "rows", number, characters);
        } else {
            line(out, "rows", number);
        }
        out.flush();
    }

    private static String text(Object value) {
        if (value == null) {
            return "\u0000";
        }
        if (value instanceof byte[] bytes) {
            return HexFormat.of().formatHex(bytes);
        }
        if (value instanceof Timestamp || value instanceof Time || value instanceof java.sql.Date) {
            return Long.toString(((Date) value).getTime());
        }
        return value instanceof java.math.BigDecimal number ? number.toPlainString() : value.toString();
    }

    private static void line(PrintStream out, Object... fields) {
        for (int index = 0; index < fields.length; index++) {
            out.print((index == 0 ? "" : "\u001f") + fields[index].toString().replace('\n', '\u001e'));
        }
        out.print('\n');
    }
}
