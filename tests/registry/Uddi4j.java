import java.util.Vector;
import org.uddi4j.UDDIException;
import org.uddi4j.client.UDDIProxy;
import org.uddi4j.datatype.Name;
import org.uddi4j.datatype.binding.AccessPoint;
import org.uddi4j.datatype.binding.BindingTemplate;
import org.uddi4j.datatype.binding.BindingTemplates;
import org.uddi4j.datatype.binding.TModelInstanceDetails;
import org.uddi4j.datatype.binding.TModelInstanceInfo;
import org.uddi4j.datatype.business.BusinessEntity;
import org.uddi4j.datatype.service.BusinessService;
import org.uddi4j.datatype.tmodel.TModel;
import org.uddi4j.response.ServiceInfo;
import org.uddi4j.response.ServiceList;
import org.uddi4j.util.FindQualifier;
import org.uddi4j.util.FindQualifiers;
import org.uddi4j.util.TModelBag;
import org.uddi4j.util.TModelKey;

/** Publishes a business with a service and finds both, as programs of 2004 do. */
public class Uddi4j {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("org.uddi4j.TransportClassName", "org.uddi4j.transport.ApacheAxisTransport");
        UDDIProxy registry = new UDDIProxy();
        registry.setInquiryURL(arguments[0] + "/registry/uddi/inquiry");
        registry.setPublishURL(arguments[0] + "/registry/uddi/publication");
        String token = registry.get_authToken("alice", "secret").getAuthInfoString();
        TModel queries = (TModel) registry.save_tModel(token, one(new TModel("", "queries"))).getTModelVector().get(0);
        Vector saved = registry.save_business(token, one(new BusinessEntity("", "Observatory"))).getBusinessEntityVector();
        String business = ((BusinessEntity) saved.get(0)).getBusinessKey();

        BusinessService service = new BusinessService("");
        service.setBusinessKey(business);
        service.setDefaultNameString("Sky & sea", "en");
        AccessPoint address = new AccessPoint("http://data/service", "http");
        BindingTemplate binding = new BindingTemplate("", new TModelInstanceDetails(), address);
        binding.getTModelInstanceDetails().add(new TModelInstanceInfo(queries.getTModelKey()));
        BindingTemplates bindings = new BindingTemplates();
        bindings.add(binding);
        service.setBindingTemplates(bindings);
        saved = registry.save_service(token, one(service)).getBusinessServiceVector();
        String key = ((BusinessService) saved.get(0)).getServiceKey();

        TModelBag bag = new TModelBag();
        bag.add(new TModelKey(queries.getTModelKey()));
        FindQualifiers qualifiers = new FindQualifiers();
        qualifiers.add(new FindQualifier("sortByNameDesc"));
        ServiceList found = registry.find_service(business, one(new Name("sky")), null, bag, qualifiers, 10);
        ServiceInfo info = (ServiceInfo) found.getServiceInfos().getServiceInfoVector().get(0);
        System.out.println("service " + info.getDefaultNameString());
        Vector bound = registry.find_binding(null, key, bag, 10).getBindingTemplateVector();
        System.out.println("binding " + ((BindingTemplate) bound.get(0)).getAccessPoint().getText());
        Vector name = one(new Name("Obs"));
        int count = registry.find_business(name, null, null, null, null, null, -1).getBusinessInfos().size();
        System.out.println("businesses " + count);
        try {
            registry.get_serviceDetail("00000000-0000-0000-0000-000000000000");
        } catch (UDDIException refused) {
            System.out.println("refused " + refused.getDispositionReport().getErrno());
        }
        System.out.println("deleted " + registry.delete_business(token, business).success());
        System.out.println("discarded " + registry.discard_authToken(token).success());
    }

    private static Vector one(Object each) {
        Vector vector = new Vector();
        vector.add(each);
        return vector;
    }
}
