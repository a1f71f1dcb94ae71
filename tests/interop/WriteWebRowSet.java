import java.io.InputStream;
import java.io.Writer;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Date;
import java.sql.Time;
import java.sql.Timestamp;
import java.sql.Types;
import javax.sql.rowset.RowSetMetaDataImpl;
import javax.sql.rowset.RowSetProvider;
import javax.sql.rowset.WebRowSet;

/**
 * WebRowSets by the JDK's own writer: {@code WriteWebRowSet FROM TO} reads a document with the columns
 * {@code id INTEGER, name VARCHAR} and at least five rows, changes it in every way there is and writes it;
 * {@code WriteWebRowSet TO} writes rows with a column of every type, of which only name and type are set.
 */
public final class WriteWebRowSet {
    private static final Object[][] TYPES = {
        {Types.BIT, true}, {Types.BOOLEAN, false}, {Types.TINYINT, (byte) -128}, {Types.SMALLINT, (short) 7},
        {Types.INTEGER, -1}, {Types.BIGINT, 1L << 60}, {Types.REAL, 1.5f}, {Types.FLOAT, 1.25},
        {Types.DOUBLE, 1e300}, {Types.NUMERIC, new BigDecimal("1E+3")}, {Types.DECIMAL, new BigDecimal("-0.50")},
        {Types.CHAR, "c "}, {Types.VARCHAR, "\u00e9 <&>'\"\n"}, {Types.LONGVARCHAR, ""},
        {Types.DATE, new Date(1_709_164_800_000L)}, {Types.TIME, new Time(1000)},
        {Types.TIMESTAMP, new Timestamp(1_709_164_800_500L)}, {Types.VARBINARY, new byte[] {1, 2}},
        {Types.NVARCHAR, "left out"}, {Types.OTHER, "left out"},
    };

    public static void main(String[] arguments) throws Exception {
        WebRowSet rows = RowSetProvider.newFactory().createWebRowSet();
        if (arguments.length == 1) {
            fill(rows);
        } else {
            try (InputStream in = Files.newInputStream(Path.of(arguments[0]))) {
                rows.readXml(in);
            }
            change(rows);
        }
        rows.setCommand("select '' where 1 < 2 & 3");
        rows.setKeyColumns(new int[] {1});
        rows.setTableName("t");
        try (Writer out = Files.newBufferedWriter(
                Path.of(arguments[arguments.length - 1]), StandardCharsets.UTF_8)) {
            rows.writeXml(out);
        }
    }

    private static void fill(WebRowSet rows) throws Exception {
        RowSetMetaDataImpl metadata = new RowSetMetaDataImpl();
        metadata.setColumnCount(TYPES.length);
        for (int column = 1; column <= TYPES.length; column++) {
            metadata.setColumnName(column, "c" + column);
            metadata.setColumnType(column, (Integer) TYPES[column - 1][0]);
        }
        rows.setMetaData(metadata);
        for (boolean isNull : new boolean[] {true, false}) {
            rows.moveToInsertRow();
            for (int column = 1; column <= TYPES.length; column++) {
                if (isNull) {
                    rows.updateNull(column);
                } else {
                    set(rows, column, TYPES[column - 1][1]);
                }
            }
            rows.insertRow();
            rows.moveToCurrentRow();
        }
    }

    private static void set(WebRowSet rows, int column, Object value) throws Exception {
        if (value instanceof byte[] bytes) {
            rows.updateBytes(column, bytes);
        } else if (value instanceof Boolean truth) {
            rows.updateBoolean(column, truth);
        } else if (value instanceof Byte number) {
            rows.updateByte(column, number);
        } else {
            rows.updateObject(column, value);
        }
    }

    private static void change(WebRowSet rows) throws Exception {
        rows.absolute(1);
        update(rows, "");
        rows.absolute(2);
        rows.updateInt(1, 20);
        rows.updateNull(2);
        rows.updateRow();
        rows.absolute(4);
        update(rows, "gone too");
        rows.deleteRow();
        rows.absolute(3);
        rows.deleteRow();
        insert(rows, 100, "new");
        insert(rows, 101, "old");
        update(rows, "newer");
        insert(rows, 102, "new and gone");
        rows.deleteRow();
        insert(rows, 103, "new");
        update(rows, "newer and gone");
        rows.deleteRow();
    }

    private static void insert(WebRowSet rows, int id, String name) throws Exception {
        rows.beforeFirst();
        rows.next();
        rows.moveToInsertRow();
        rows.updateInt(1, id);
        rows.updateString(2, name);
        rows.insertRow();
        rows.moveToCurrentRow();
        rows.beforeFirst();
        while (rows.next() && rows.getInt(1) != id) {}
    }

    private static void update(WebRowSet rows, String name) throws Exception {
        rows.updateString(2, name);
        rows.updateRow();
    }
}
